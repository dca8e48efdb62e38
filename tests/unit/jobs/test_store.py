"""Files of a job under injected faults: failing and missing system calls, power failures, damage.

The engine is a list of buckets, so no model is needed.
"""

import errno
import itertools
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite.errors import DataError, FileError, OptionError
from onmt_lite.jobs import store as store_module
from onmt_lite.jobs.fingerprint import LABEL
from onmt_lite.jobs.inputs import Range, Span
from onmt_lite.jobs.output import Output
from onmt_lite.jobs.reports import FlaggedLines, Summary
from onmt_lite.jobs.store import DIRECTORY_MODE, ResultParts, Store
from onmt_lite.jobs.tasks import BucketResult
from onmt_lite.system import atomic_files as whole_module
from onmt_lite.system.terminal import Interrupted

JOB = {"options": {"beam_size": 5, "report": "rep"}, "files": {"src": [10, "abc"]}}
MACHINE = {"device": "cpu"}
OLDER = b"older\n"


def bucket(i):
    notes = {"empty": FlaggedLines(1, 0, [3 * i + 1])}
    data = f"a line of bucket {i} ü\n".encode() * 3
    return BucketResult(
        i, 3, data, Summary(3, score=-i / 3, notes=notes), b'{"id": %d}\n' % (3 * i)
    )


BUCKETS = [bucket(i) for i in range(3)]
RANGES = [Range(i, 3 * i, {"src": Span("src", 3, 9 * i, 9, 0)}) for i in range(3)]
GOLD = {
    "out": b"".join(done.data for done in BUCKETS),
    "rep": b"".join(done.report for done in BUCKETS),
}


def whole_summary():
    summary = Summary()
    for done in BUCKETS:
        summary.join(done.summary)
    return summary


def run(folder, resume=False, job=JOB, machine=MACHINE, resumable=True, until=None):
    """Run or resume a job; `until`: raise an error before this bucket.  Returns the output."""
    with Output(str(folder / "out"), str(folder / "rep"), resumable) as out:
        if resume and out.is_complete(job, RANGES):
            return out
        out.begin(job, RANGES, machine)
        for each in out.todo:
            if each.number == until:
                raise Interrupted(15)
            done = BUCKETS[each.number]
            if out.parts is not None:  # as a task does
                out.parts.write(done)
            out.append(done)
        out.join()
        out.publish()
    return out


def found(folder):
    """Return the contents of all files, except the owner of the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def is_done(folder):
    """Return True if the files are complete and there are no other files."""
    return found(folder) == GOLD and sorted(os.listdir(folder)) == ["out", "rep"]


def fresh(tmp_path, name="work"):
    folder = tmp_path / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "out").write_bytes(OLDER)
    return folder


def stopped_after(folder, n):
    with pytest.raises(Interrupted):
        run(folder, until=n)


@pytest.fixture
def quick(monkeypatch):
    """Skip fsync."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def use(monkeypatch, system):
    for module in (store_module, whole_module):
        monkeypatch.setattr(module, "os", system)


CALLS = (
    "open write pwrite pread fsync replace link unlink mkdir rmdir listdir scandir setxattr "
    "fchmod fchown stat lstat fstat close"
).split()


class Faulty:
    """The module os with a k-th call that fails."""

    def __init__(self, k, fault):
        self.left, self.fault = k, fault

    def __getattr__(self, name):
        function = getattr(os, name)
        if name not in CALLS:
            return function

        def call(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                self.fault(name, args)
            return function(*args, **kwargs)

        return call


def fails(number):
    def fault(name, args):
        if name == "write":  # a full disk takes what fits
            os.write(args[0], bytes(args[1])[: len(args[1]) // 2])
        if name != "close":
            raise OSError(number, os.strerror(number))

    return fault


def dies(name, args):
    os._exit(9)


def check_and_resume(folder, k):
    left = found(folder)
    assert left["out"] in (OLDER, GOLD["out"]), k
    assert left.get("rep", GOLD["rep"]) == GOLD["rep"], k
    run(folder, resume=True)
    assert is_done(folder), k


def killed(patch, fault, folder, **how):
    """Return the exit code of a forked job."""
    if (child := os.fork()) == 0:
        use(patch, fault)
        run(folder, **how)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EFBIG])
def test_store_failing_system_call_keeps_output_and_can_resume(
    tmp_path, monkeypatch, quick, number
):
    """The error is a FileError, and the resumed job gives the same bytes."""
    for k in itertools.count(1):
        folder, system = fresh(tmp_path), Faulty(k, fails(number))
        with monkeypatch.context() as patch:
            use(patch, system)
            try:
                run(folder)
            except FileError:
                pass
        check_and_resume(folder, k)
        if system.left > 0:
            break
    assert k > 100


def test_store_killed_before_any_system_call_can_resume(tmp_path, monkeypatch, quick):
    for k in itertools.count(1):
        folder = fresh(tmp_path)
        code = killed(monkeypatch, Faulty(k, dies), folder)
        if code == 9 and k % 3 == 0:  # the second run is killed too
            killed(monkeypatch, Faulty(k // 2, dies), folder, resume=True)
        check_and_resume(folder, k)
        if code == 0:
            break
        assert code == 9
    assert k > 100


class Recorder:
    """The module os, recording calls that change the disk."""

    def __init__(self):
        self.log, self.paths = [], {}

    def __getattr__(self, name):
        function = getattr(os, name)
        if name not in ("replace", "link", "unlink", "mkdir", "rmdir"):
            return function

        def call(*args):
            function(*args)
            self.log.append((name, *args))

        return call

    def open(self, path, flags, *mode):
        is_new = flags & os.O_CREAT and not os.path.exists(path)
        fd = os.open(path, flags, *mode)
        self.paths[fd] = path
        if is_new:
            self.log.append(("create", path))
        return fd

    def write(self, fd, data):
        self.log.append(("write", self.paths[fd], os.lseek(fd, 0, os.SEEK_CUR), bytes(data)))
        return os.write(fd, data)

    def pwrite(self, fd, data, offset):
        self.log.append(("write", self.paths[fd], offset, bytes(data)))
        return os.pwrite(fd, data, offset)

    def fsync(self, fd):
        self.log.append(("fsync", self.paths[fd]))


FOLDER = -1  # instead of the number of a file


def on_disk(log, folder):
    """Return the possible states of the disk after a power failure.

    Unsynced names are all present or all missing.  A file has its written or its synced contents.
    Names change in order, as on journaling file systems; a file is a list of its states.
    """
    files = [[OLDER]]  # by number: contents in memory last, on the disk first
    memory = {str(folder / "out"): 0}
    disk = dict(memory)
    for kind, path, *more in log:
        if kind == "create":
            memory[path] = len(files)
            files.append([b""])
        elif kind == "mkdir":
            memory[path] = FOLDER
        elif kind == "write":
            state = files[memory[path]]
            offset, data = more
            old = state[-1].ljust(offset, b"\0")
            state.append(old[:offset] + data + old[offset + len(data) :])
        elif kind == "fsync" and memory.get(path, FOLDER) == FOLDER:
            disk = dict(memory)
        elif kind == "fsync":
            files[memory[path]] = files[memory[path]][-1:]
        elif kind == "replace":
            memory[more[0]] = memory.pop(path)
        elif kind == "link":
            memory[more[0]] = memory[path]
        elif kind in ("unlink", "rmdir"):
            del memory[path]
    for names in (memory, disk):
        numbers = sorted(set(names.values()) - {FOLDER})
        for states in itertools.product(*({files[i][0], files[i][-1]} for i in numbers)):
            data = dict(zip(numbers, states))
            yield {path: data.get(i) for path, i in names.items()}


def test_store_power_failure_after_any_system_call_can_resume(tmp_path, monkeypatch, quick):
    folder, recorder = fresh(tmp_path), Recorder()
    with monkeypatch.context() as patch:
        use(patch, recorder)
        run(folder)
    assert is_done(folder)
    n_states = 0
    for k in range(len(recorder.log) + 1):
        states = {tuple(sorted(state.items())) for state in on_disk(recorder.log[:k], folder)}
        for state in states:
            fresh(tmp_path)
            (folder / "out").unlink()
            for path, data in state:
                if data is None:
                    os.mkdir(path, DIRECTORY_MODE)
                else:
                    Path(path).write_bytes(data)
            check_and_resume(folder, k)
            n_states += 1
    assert n_states > 100


@pytest.fixture(scope="module")
def halfway(tmp_path_factory):
    """Return the files of a job that was stopped after two buckets."""
    folder = tmp_path_factory.mktemp("halfway")
    (folder / "out").write_bytes(OLDER)
    stopped_after(folder, 2)
    return {**found(folder), "out.parts/.lock": (folder / "out.parts/.lock").read_bytes()}


def damages(data):
    """Yield ways to damage a file."""
    n = len(data)

    def flip(i, bit):
        return data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :]

    def zeros(i, m):
        return data[:i] + bytes(min(m, n - i)) + data[i + m :]

    places = st.integers(0, n - 1)
    return st.one_of(
        st.builds(lambda i: data[:i], places),
        st.builds(flip, places, BITS),
        st.builds(lambda junk: data + junk, st.binary(min_size=1, max_size=300)),
        st.builds(lambda i: data + data[i:], places),
        st.builds(zeros, places, SIZES),
        st.builds(lambda i, m: data[:i] + data[i + m :], places, SIZES),
        st.just(None),
    )


BITS, SIZES = st.integers(0, 7), st.integers(1, 4096)


@given(st.data(), st.sampled_from([DIRECTORY_MODE, 0o755]))
@settings(max_examples=300)
def test_store_damaged_files_are_detected(halfway, data, mode):
    """The output is correct, whichever file of the store is damaged.

    A copied store has a normal directory mode and is recognized by its manifest.
    """
    assert len(halfway) == 6
    name = data.draw(st.sampled_from(sorted(set(halfway) - {"out"})))
    damaged = data.draw(damages(halfway[name]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        os.mkdir(f"{folder}/out.parts", mode)
        for file, content in {**halfway, name: damaged}.items():
            if content is not None:
                (Path(folder) / file).write_bytes(content)
        if mode != DIRECTORY_MODE and name.endswith("manifest.json"):
            before = found(Path(folder))
            with pytest.raises(FileError, match="already exists and was not created by onmt_lite"):
                run(Path(folder), resume=True)
            assert found(Path(folder)) == before
            return
        done = run(Path(folder), resume=True)
        assert is_done(Path(folder))
        assert done.summary == whole_summary()


@pytest.mark.parametrize("n", range(4))
def test_resume_continues_after_last_finished_bucket(tmp_path, quick, n):
    folder = fresh(tmp_path)
    if n < 3:
        stopped_after(folder, n)
        parts = ResultParts(str(folder / "out"), JOB)
        kept = [part and part.data for part in map(parts.read, range(3))]
        assert kept == [done.data if done.number < n else None for done in BUCKETS]
    else:
        run(folder)
    assert found(folder)["out"] == (OLDER if n < 3 else GOLD["out"])
    done = run(folder, resume=True)
    assert is_done(folder)
    assert done.summary == whole_summary()


def test_resume_translates_only_damaged_partial_file_again(tmp_path, quick):
    folder = fresh(tmp_path)
    stopped_after(folder, 2)
    part = folder / "out.parts" / "000000"
    part.write_bytes(part.read_bytes()[:-2] + b"?\n")
    with Output(str(folder / "out"), str(folder / "rep"), True) as out:
        assert not out.is_complete(JOB, RANGES)
        assert (out.todo, out.n_before) == ([RANGES[0], RANGES[2]], 3)
    run(folder, resume=True)
    assert is_done(folder)


def test_partial_file_lost_before_the_end_is_an_error(tmp_path, quick):
    """Resuming only translates this bucket again."""
    folder = fresh(tmp_path)
    with pytest.raises(
        FileError, match="the partial file at lines 4 to 6 is damaged or missing"
    ) as caught:
        with Output(str(folder / "out"), None, True) as out:
            out.begin(JOB, RANGES, MACHINE)
            for done in BUCKETS:
                out.parts.write(done)
            os.unlink(folder / "out.parts" / "000001")
            out.join()
    assert out.can_resume_after(caught.value) and found(folder)["out"] == OLDER
    with Output(str(folder / "out"), None, True) as out:
        assert not out.is_complete(JOB, RANGES) and out.todo == [RANGES[1]]


@pytest.mark.parametrize(
    ("job", "machine", "said"),
    [
        ({**JOB, "options": {"beam_size": 4, "report": "rep"}}, MACHINE, "beam_size was 5, now 4"),
        ({**JOB, "files": {"src": [10, "abd"]}}, MACHINE, "src has changed"),
        ({**JOB, "files": {**JOB["files"], "tgt": [1, "a"]}}, MACHINE, "tgt is new"),
        ({**JOB, "files": {}}, MACHINE, "src is missing"),
        ({**JOB, "versions": {"torch": "2"}}, MACHINE, "version of torch was none, now 2"),
        (JOB, {"device": "cuda"}, "device was cpu, now cuda"),
    ],
)
def test_resume_error_names_each_difference(tmp_path, quick, job, machine, said):
    folder = fresh(tmp_path)
    stopped_after(folder, 2)
    before = found(folder)
    with pytest.raises(OptionError, match=f"^resume: {said}; restore it"):
        run(folder, resume=True, job=job, machine=machine)
    assert found(folder) == before
    run(folder, job=job, machine=machine)  # without -resume, it starts over
    assert is_done(folder)


def test_resume_ignores_partial_files_of_other_jobs(tmp_path, quick):
    """A worker of an earlier job may write a partial file late."""
    folder = fresh(tmp_path)
    with Output(str(folder / "out"), str(folder / "rep"), True) as out:
        out.begin(JOB, RANGES, MACHINE)
        late = ResultParts(str(folder / "out"), {"options": {"beam_size": 4}})
        late.write(BucketResult(0, 1, b"another\n", Summary(1)))
        assert out.parts.read(0) is None
        raised = pytest.raises(Interrupted)
        with raised:
            raise Interrupted(15)
    run(folder, resume=True)
    assert is_done(folder)


def test_claim_device_rejects_other_device_or_precision(tmp_path, quick):
    folder = fresh(tmp_path)
    with Output(str(folder / "out"), None, True) as out:
        out.begin(JOB, RANGES, None)  # who translates is not known yet
        out.parts.claim_device({"device": "cpu", "precision": "int8"})
        out.parts.claim_device({"device": "cpu", "precision": "int8"})
        with pytest.raises(OptionError, match="precision was int8, now fp32"):
            out.parts.claim_device({"device": "cpu", "precision": "fp32"})


def test_label_identifies_complete_output(tmp_path, quick):
    folder = fresh(tmp_path)
    run(folder)
    if not hasattr(os, "getxattr"):
        pytest.skip("this system has no extended attributes")
    try:
        os.getxattr(folder / "out", LABEL)
    except OSError:
        pytest.skip("this file system has no extended attributes")
    before = os.stat(folder / "out")
    assert not run(folder, resume=True).is_started
    assert os.stat(folder / "out").st_ino == before.st_ino and is_done(folder)
    other = {**JOB, "options": {"beam_size": 4}}
    assert run(folder, resume=True, job=other).is_started
    (folder / "out").write_bytes(GOLD["out"].replace(b"2", b"3"))  # written to afterwards
    assert run(folder, resume=True, job=other).is_started
    assert is_done(folder)


def test_complete_output_without_label_is_translated_again(tmp_path, monkeypatch, quick):
    folder = fresh(tmp_path)

    def refuse(*args):
        raise OSError(errno.ENOTSUP, "no")

    monkeypatch.setattr(os, "setxattr", refuse, raising=False)
    monkeypatch.setattr(os, "getxattr", refuse, raising=False)
    run(folder)
    assert run(folder, resume=True).is_started
    assert is_done(folder)


@pytest.mark.parametrize("error", [DataError("line 3"), OptionError("no")])
def test_rejected_job_leaves_no_store(tmp_path, quick, error):
    for n_done in (None, 0, 2):
        folder = fresh(tmp_path)
        with pytest.raises(type(error)), Output(str(folder / "out"), None, True) as out:
            if n_done is not None:
                out.begin(JOB, RANGES, MACHINE)
                for done in BUCKETS[:n_done]:
                    out.parts.write(done)
            raise error
        assert found(folder) == {"out": OLDER} and os.listdir(folder) == ["out"]
        assert not out.can_resume_after(error)


def test_job_without_resume_leaves_no_store(tmp_path, quick):
    folder = fresh(tmp_path)
    with pytest.raises(Interrupted):
        run(folder, resumable=False, until=2)
    assert os.listdir(folder) == ["out"] and found(folder) == {"out": OLDER}
    run(folder, resumable=False)
    assert is_done(folder)


def link_to(name, make):
    """Create a link to the result of `make`, next to it."""

    def linked(path):
        make(path.with_name(name))
        path.symlink_to(name)

    return linked


def text_file(path):
    path.write_bytes(b"theirs\n")


def folder_with_files(path):
    path.mkdir()
    text_file(path / "000000")


foreign_link, dangling_link = link_to("precious", text_file), link_to("nowhere", lambda path: None)

FOREIGN = [
    *(text_file, foreign_link, dangling_link, os.mkfifo),
    *(Path.mkdir, folder_with_files, link_to("folder", Path.mkdir)),
]


def foreign_link(path):
    path.with_name("precious").write_bytes(b"precious\n")
    path.symlink_to("precious")


def folder_with_files(path):
    path.mkdir()
    (path / "000000").write_bytes(b"theirs\n")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["out.parts", "rep.parts"])
@pytest.mark.parametrize("make", FOREIGN)
def test_store_leaves_foreign_files_untouched(tmp_path, quick, name, make):
    for n_before in (None, 1):
        folder = fresh(tmp_path)
        if n_before is not None:
            stopped_after(folder, n_before)
            shutil.rmtree(folder / name, ignore_errors=True)
        make(folder / name)
        status, before = os.lstat(folder / name), found(folder)
        for resume in (False, True):
            with pytest.raises(FileError, match=f"{name} already exists and was not created"):
                run(folder, resume)
            after = os.lstat(folder / name)
            assert (after.st_ino, after.st_mode) == (status.st_ino, status.st_mode)
            assert found(folder) == before


def second_name(path):
    text_file(path.parent.parent / "precious")
    os.link(path.parent.parent / "precious", path)


@pytest.mark.parametrize("make", [foreign_link, dangling_link, os.mkfifo, Path.mkdir, second_name])
@pytest.mark.parametrize("name", ["000000", "000007", ".lock", "manifest.json", "output", "notes"])
def test_store_follows_and_removes_no_foreign_links(tmp_path, quick, name, make):
    if make is second_name and name not in (".lock", "notes"):
        pytest.skip("all others are replaced, never written to")
    folder = fresh(tmp_path)
    stopped_after(folder, 2)
    place = folder / "out.parts" / name
    place.unlink(missing_ok=True)
    make(place)
    before = found(folder)
    for resume in (False, True):
        with pytest.raises(FileError, match="already exists and was not created by onmt_lite"):
            run(folder, resume)
    assert found(folder) == before and os.path.lexists(place)


def test_store_hard_links_keep_their_contents(tmp_path, quick):
    folder = fresh(tmp_path)
    os.link(folder / "out", folder / "hard")
    os.symlink("out", folder / "soft")
    stopped_after(folder, 2)
    os.link(folder / "out.parts" / "000000", folder / "part")
    before = (folder / "part").read_bytes()
    run(folder)
    assert (folder / "part").read_bytes() == before
    assert (folder / "hard").read_bytes() == OLDER and os.readlink(folder / "soft") == "out"


def test_store_syncs_directory_before_job_ends(tmp_path, monkeypatch, quick):
    """Partial files and their names are synced; they are removed once the output is safe."""
    folder, recorder = fresh(tmp_path), Recorder()
    with monkeypatch.context() as patch:
        use(patch, recorder)
        run(folder)
    calls = [(kind, *(Path(path).name for path in paths[:1])) for kind, *paths in recorder.log]
    renamed = [i for i, (kind, *_) in enumerate(calls) if kind == "replace"]
    assert len(renamed) == 1 + 1 + 3 + 2  # manifest, machine, parts, output and report
    for i in renamed:
        assert calls[i - 1] == ("fsync", calls[i][1])
        kind, path = recorder.log[i + 1]
        assert kind == "fsync" and path == os.path.dirname(recorder.log[i][2])
    removed = [i for i, (kind, name) in enumerate(calls) if kind == "unlink" and name.isdigit()]
    assert len(removed) == 3 and min(removed) > max(renamed)
    last = [("unlink", ".lock"), ("rmdir", "out.parts"), ("unlink", ".lock")]
    assert calls[-4:-1] == last


def test_store_is_private_and_removed_if_empty(tmp_path, quick):
    folder = fresh(tmp_path)
    with Store(str(folder / "out")):
        assert stat.S_IMODE(os.stat(folder / "out.parts").st_mode) & 0o777 == 0o700
    assert os.listdir(folder) == ["out"]
