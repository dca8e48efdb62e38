"""Where translations go: to a stream, or to a file that appears when it is complete.

A file OUT is written as OUT.part, bucket after bucket, and OUT.part.journal says which buckets of
which job are in it: see `onmt_lite.journal`.  At the end the part takes the place of OUT.
"""

import contextlib
import os
import select
import signal
import stat
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict

from onmt_lite.buckets import Done
from onmt_lite.errors import CheckpointError, DataError, FileError, OptionError
from onmt_lite.files import descriptor_of, name_of, part_of, replaces_a_file
from onmt_lite.fingerprint import Job, differences, digest
from onmt_lite.interrupt import Interrupted
from onmt_lite.journal import Journal, Record, foreign, write_all
from onmt_lite.reports import LOG, Summary

ATTRIBUTE = "user.onmt_lite.job"  # of a complete file: its job, its bytes and their CRC-32
CHUNK = 1 << 20
REFUSED = (OptionError, DataError, CheckpointError)  # going on would end as the first run did


class Output:
    """What a job writes: its translations, and its report if there is one.

    n_done   buckets that are written, with those of earlier runs
    kept     the summary of the lines that earlier runs have written
    """

    def __init__(self, sinks: "list[Stream | Part]", resumable: bool):
        """`sinks`: for the translations, then perhaps for the report.  `resumable`: an input that
        can be read again from its start."""
        self.sinks = sinks
        self.parts = [sink for sink in sinks if isinstance(sink, Part)]
        self.resumable = resumable and len(self.parts) == len(sinks)
        self.n_done, self.kept = 0, Summary()
        self.begun = False

    def compare(self, job: Job) -> None:
        """Raise OptionError where a journal is of another job; one that has no "machine" yet is
        compared without."""
        journals = [part.journal.job for part in self.parts if part.journal.job is not None]
        found = [difference for old in journals for difference in differences(old, job)]
        if found:
            problems = (f"resume: {difference}" for difference in dict.fromkeys(found))
            raise OptionError(*(f"{p}; give what it was, or leave out -resume" for p in problems))

    def finish_earlier(self, job: Job) -> bool:
        """Whether earlier runs have done all of the job; then the files are in their places."""
        if not all(part.is_complete(job) for part in self.parts):
            return False
        self._place(job)
        return True

    def begin(self, job: Job, resume: bool) -> None:
        """Go on behind the buckets that are there, or begin anew.  `job` has its machine.

        Raises OptionError where another machine has begun, FileError where a file cannot be
        written.
        """
        self.begun = True
        if resume:
            self.compare(job)
            self._find()
        for part in self.parts:
            if self.n_done:
                part.go_on()
            else:
                part.start(job)

    def append(self, done: Done) -> None:
        """Write a bucket.  Raises FileError, and Interrupted where nobody reads a pipe."""
        record = {"lines": done.n_lines, "summary": asdict(done.summary)}
        # What earlier runs have counted is read where the translations are
        for sink, data in reversed([*zip(self.sinks, (done.data, done.report))]):
            sink.append(data, record)
        self.n_done += 1

    def finish(self, job: Job) -> None:
        """Everything is written: put the files in their places.  Raises FileError."""
        for sink in self.sinks:
            sink.end()
        self._place(job)

    def leave(self, error: BaseException) -> None:
        """Keep what can be gone on from; else remove what this run has written."""
        ...

    def _find(self) -> None:
        """Count the buckets that are in all parts as the journals say."""
        for buckets in zip(*(part.buckets() for part in self.parts)):
            for part, bucket in zip(self.parts, buckets):
                part.keep(bucket)
            self.kept.join(Summary.read(buckets[0].record["summary"]))
            self.n_done += 1

    def _place(self, job: Job) -> None:
        for part in self.parts:
            part.place(job)
        for part in self.parts:
            part.journal.remove()
