"""Files of a job under faults: every call that fails or never comes, power cuts, torn journals.

The engine is a list of buckets, so that nothing here needs a model.
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
from onmt_lite.jobs.buckets import Done

from onmt_lite.config.interrupt import Interrupted
from onmt_lite.errors import DataError, FileError, OptionError
from onmt_lite.jobs import journal, output, part
from onmt_lite.jobs.output import open_output
from onmt_lite.jobs.reports import Noted, Summary

JOB = {"options": {"beam_size": 5, "report": "rep"}, "files": {"src": [10, "abc"]}}
MACHINE = {"device": "cpu"}
OLDER = b"older\n"


def bucket(i):
    notes = {"empty": Noted(1, 0, [3 * i + 1])}
    data = f"a line of bucket {i} ü\n".encode() * 3
    return Done(i, 3, data, Summary(3, score=-i / 3, notes=notes), b'{"id": %d}\n' % (3 * i))


BUCKETS = [bucket(i) for i in range(3)]
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
    """A job, or the rest of one; `until`: an error after so many buckets.  Returns the output."""
    with open_output(str(folder / "out"), str(folder / "rep"), resumable) as out:
        if resume and out.is_complete(job):
            return out
        out.begin(job if resumable else {}, machine, resume)
        for done in BUCKETS[out.n_done :]:
            if done.number == until:
                raise until_error
            out.append(done)
        out.finish()
    return out


until_error = Interrupted(15)


def found(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def found_names(folder):
    return sorted(os.listdir(folder))


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
    """Without waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def use(monkeypatch, system):
    for module in (journal, part, output):
        monkeypatch.setattr(module, "os", system)


CALLS = (
    "open write pwrite pread lseek fsync ftruncate replace unlink setxattr fchmod fchown stat "
    "lstat fstat close"
).split()


class Faulty:
    """The module os, whose k-th call from now on does not work."""

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
    done = run(folder, resume=True)
    assert found(folder) == GOLD, k
    return done


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EFBIG])
def test_each_call_that_fails(tmp_path, monkeypatch, quick, number):
    """Then the error is one of files, and the job goes on to the same bytes."""
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
    assert k > 50


def test_each_call_before_which_the_job_is_killed(tmp_path, monkeypatch, quick):
    for k in itertools.count(1):
        folder = fresh(tmp_path)
        if (child := os.fork()) == 0:
            use(monkeypatch, Faulty(k, dies))
            run(folder)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 9 and k % 3 == 0:  # the second run is killed too
            if (child := os.fork()) == 0:
                use(monkeypatch, Faulty(k // 2, dies))
                run(folder, resume=True)
                os._exit(0)
            os.waitpid(child, 0)
        check_and_resume(folder, k)
        if code == 0:
            break
        assert code == 9
    assert k > 50


class Recorder:
    """The module os, which writes down what changes the disk."""

    def __init__(self):
        self.log, self.paths = [], {}

    def __getattr__(self, name):
        return getattr(os, name)

    def open(self, path, flags, *mode):
        fd = os.open(path, flags, *mode)
        self.paths[fd] = path
        if flags & os.O_CREAT:
            self.log.append(("create", path))
        return fd

    def write(self, fd, data):
        self.log.append(("write", self.paths[fd], os.lseek(fd, 0, os.SEEK_CUR), bytes(data)))
        return os.write(fd, data)

    def pwrite(self, fd, data, offset):
        self.log.append(("write", self.paths[fd], offset, bytes(data)))
        return os.pwrite(fd, data, offset)

    def ftruncate(self, fd, size):
        self.log.append(("truncate", self.paths[fd], size))
        os.ftruncate(fd, size)

    def fsync(self, fd):
        self.log.append(("fsync", self.paths[fd]))

    def replace(self, path, target):
        self.log.append(("rename", path, target))
        os.replace(path, target)

    def unlink(self, path):
        self.log.append(("unlink", path))
        os.unlink(path)


def on_disk(log, folder, names_too, data_too):
    """Files after a power cut: of what was not synced, all names or none, and the data of the
    files whose numbers `data_too` holds.

    Names are changed in order, as file systems with a journal do; a file is a list of its states.
    """
    files = [[OLDER]]  # by number: contents in memory last, on the disk first
    memory = {str(folder / "out"): 0}
    disk = dict(memory)
    for kind, path, *more in log:
        if kind == "create":
            memory[path] = len(files)
            files.append([b""])
        elif kind == "write":
            state = files[memory[path]]
            offset, data = more
            old = state[-1].ljust(offset, b"\0")
            state.append(old[:offset] + data + old[offset + len(data) :])
        elif kind == "truncate":
            state = files[memory[path]]
            state.append(state[-1][: more[0]].ljust(more[0], b"\0"))
        elif kind == "fsync" and path == str(folder):
            disk = dict(memory)
        elif kind == "fsync":
            files[memory[path]] = files[memory[path]][-1:]
        elif kind == "rename":
            memory[more[0]] = memory.pop(path)
        elif kind == "unlink":
            memory.pop(path, None)
    names = memory if names_too else disk
    return {path: files[i][-1 if i in data_too else 0] for path, i in names.items()}


def test_a_power_cut_after_each_call(tmp_path, monkeypatch, quick):
    """What was not synced is on the disk or not; OUT is whole, and the job goes on."""
    folder, recorder = fresh(tmp_path), Recorder()
    with monkeypatch.context() as patch:
        use(patch, recorder)
        run(folder)
    assert found(folder) == GOLD
    n_states = 0
    for k in range(len(recorder.log) + 1):
        states = []
        for names_too, n in itertools.product((False, True), range(32)):
            data_too = {i for i in range(5) if n >> i & 1}
            state = on_disk(recorder.log[:k], folder, names_too, data_too)
            if state not in states:
                states.append(state)
        for state in states:
            fresh(tmp_path)
            (folder / "out").unlink()
            for path, data in state.items():
                Path(path).write_bytes(data)
            try:
                check_and_resume(folder, k)
            except FileError as error:  # a head of NULs, written to no disk
                assert "is no file of onmt_lite" in str(error)
                assert (folder / "out.part.journal").read_bytes()[:5] == b"\0" * 5
            n_states += 1
    assert n_states > 100


@pytest.fixture(scope="module")
def halfway(tmp_path_factory):
    """What a job that was stopped after two buckets has left."""
    folder = tmp_path_factory.mktemp("halfway")
    (folder / "out").write_bytes(OLDER)
    stopped_after(folder, 2)
    return found(folder)


def damages(data):
    """Ways to damage a file."""
    n = len(data)
    places = st.integers(0, n - 1)
    return st.one_of(
        st.builds(lambda i: data[:i], places),
        st.builds(
            lambda i, bit: data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :], places, BITS
        ),
        st.builds(lambda junk: data + junk, st.binary(min_size=1, max_size=300)),
        st.builds(lambda i: data + data[i:], places),
        st.builds(lambda i, m: data[:i] + bytes(min(m, n - i)) + data[i + m :], places, SIZES),
        st.builds(lambda i, m: data[:i] + data[i + m :], places, SIZES),
        st.just(None),
    )


BITS, SIZES = st.integers(0, 7), st.integers(1, 4096)


@given(st.data())
@settings(max_examples=300)
def test_damaged_journals_and_parts(halfway, data):
    """The output is the right one, or there is an error that says why."""
    name = data.draw(st.sampled_from(sorted(set(halfway) - {"out"})))
    damaged = data.draw(damages(halfway[name]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        for file, content in {**halfway, name: damaged}.items():
            if content is not None:
                (Path(folder) / file).write_bytes(content)
        try:
            done = run(Path(folder), resume=True)
        except FileError as error:
            assert "is no file of onmt_lite" in str(error)
            assert (Path(folder) / "out").read_bytes() == OLDER
        else:
            assert found(Path(folder)) == GOLD
            assert done.summary == whole_summary()


def test_a_stopped_job_goes_on_behind_its_last_bucket(tmp_path, quick):
    for n in range(4):
        folder = fresh(tmp_path)
        if n < 3:
            stopped_after(folder, n)
            assert found(folder)["out.part"] == b"".join(done.data for done in BUCKETS[:n])
        else:
            run(folder)
        assert found(folder)["out"] == (OLDER if n < 3 else GOLD["out"])
        done = run(folder, resume=True)
        assert found(folder) == GOLD
        assert done.summary == (whole_summary() if n < 3 else Summary())


def test_a_flip_in_the_part_goes_back_to_the_bucket_before(tmp_path, quick):
    folder = fresh(tmp_path)
    stopped_after(folder, 2)
    data = (folder / "out.part").read_bytes()
    (folder / "out.part").write_bytes(data[:-2] + b"?\n")
    with open_output(str(folder / "out"), str(folder / "rep"), True) as out:
        out.begin(JOB, MACHINE, resume=True)
        assert out.n_done == 1
        out.append(BUCKETS[1])
        out.append(BUCKETS[2])
        out.finish()
    assert found(folder) == GOLD


@pytest.mark.parametrize(
    ("job", "machine", "said"),
    [
        ({**JOB, "options": {"beam_size": 4, "report": "rep"}}, MACHINE, "beam_size was 5, now 4"),
        ({**JOB, "files": {"src": [10, "abd"]}}, MACHINE, "src was changed"),
        ({**JOB, "files": {**JOB["files"], "tgt": [1, "a"]}}, MACHINE, "tgt is new"),
        ({**JOB, "files": {}}, MACHINE, "src is missing"),
        ({**JOB, "versions": {"torch": "2"}}, MACHINE, "version of torch was none, now 2"),
        (JOB, {"device": "cuda"}, "device was cpu, now cuda"),
    ],
)
def test_what_changed_is_refused_by_name(tmp_path, quick, job, machine, said):
    folder = fresh(tmp_path)
    stopped_after(folder, 2)
    before = found(folder)
    with pytest.raises(OptionError, match=f"^resume: {said}; give what it was"):
        run(folder, resume=True, job=job, machine=machine)
    after = found(folder)
    assert after == before
    run(folder, job=job, machine=machine)  # without -resume, it begins anew
    assert found(folder) == GOLD


def test_a_complete_file_is_known_by_its_label(tmp_path, quick):
    folder = fresh(tmp_path)
    run(folder)
    if not hasattr(os, "getxattr"):
        pytest.skip("this system has no extended attributes")
    try:
        os.getxattr(folder / "out", part.LABEL)
    except OSError:
        pytest.skip("this file system has no extended attributes")
    before = os.stat(folder / "out")
    assert run(folder, resume=True).n_done == 0
    assert os.stat(folder / "out").st_ino == before.st_ino
    other = {**JOB, "options": {"beam_size": 4}}
    assert run(folder, resume=True, job=other).n_done == 3
    (folder / "out").write_bytes(GOLD["out"].replace(b"2", b"3"))  # written to afterwards
    assert run(folder, resume=True, job=other).n_done == 3
    assert found(folder) == GOLD


def test_without_labels_a_job_is_done_again(tmp_path, monkeypatch, quick):
    folder = fresh(tmp_path)

    def refuse(*args):
        raise OSError(errno.ENOTSUP, "no")

    monkeypatch.setattr(os, "setxattr", refuse, raising=False)
    monkeypatch.setattr(os, "getxattr", refuse, raising=False)
    run(folder)
    assert run(folder, resume=True).n_done == 3
    assert found(folder) == GOLD


@pytest.mark.parametrize("error", [DataError("line 3"), OptionError("no")])
def test_a_refused_job_leaves_nothing(tmp_path, quick, error):
    for n_done in (None, 0, 2):
        folder = fresh(tmp_path)
        with pytest.raises(type(error)), open_output(str(folder / "out"), None, True) as out:
            if n_done is not None:
                out.begin(JOB, MACHINE)
                for done in BUCKETS[:n_done]:
                    out.append(done)
            raise error
        assert found(folder) == {"out": OLDER}
        assert not out.keeps(error)


def test_a_job_that_cannot_go_on_leaves_nothing(tmp_path, quick):
    folder = fresh(tmp_path)
    with pytest.raises(Interrupted):
        run(folder, resumable=False, until=2)
    assert found(folder) == {"out": OLDER}
    assert run(folder, resumable=False).n_done == 3
    assert found(folder) == GOLD


def foreign_file(path):
    path.write_bytes(b"theirs\n")


def foreign_link(path):
    path.with_name("precious").write_bytes(b"precious\n")
    path.symlink_to("precious")


def dangling_link(path):
    path.symlink_to("nowhere")


def fifo(path):
    os.mkfifo(path)


def folder_of(path):
    path.mkdir()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["out.part", "out.part.journal", "rep.part", "rep.part.journal"])
@pytest.mark.parametrize("make", [foreign_file, foreign_link, dangling_link, fifo, folder_of])
def test_what_is_not_ours_is_left_alone(tmp_path, quick, name, make):
    for n_before in (None, 1):
        folder = fresh(tmp_path)
        if n_before is not None:
            stopped_after(folder, n_before)
            (folder / name).unlink()
        make(folder / name)
        status = os.lstat(folder / name)
        for resume in (False, True):
            if n_before is not None and make is foreign_file and name.endswith(".part"):
                continue  # a file of this name that lies beside our journal is ours
            with pytest.raises(FileError, match=f"{name} is there already and is no file of"):
                run(folder, resume)
            after = os.lstat(folder / name)
            assert (after.st_ino, after.st_mode) == (status.st_ino, status.st_mode)
            if stat.S_ISREG(after.st_mode):
                assert (folder / name).read_bytes() == b"theirs\n"
        assert (folder / "out").read_bytes() == OLDER
        if n_before is None:
            assert set(found_names(folder)) <= {"out", name, "precious"}
        if make is foreign_link:
            assert (folder / "precious").read_bytes() == b"precious\n"


def test_another_name_of_the_part_is_not_cut(tmp_path, quick):
    folder = fresh(tmp_path)
    stopped_after(folder, 2)
    os.link(folder / "out.part", folder / "copy")
    before = (folder / "copy").read_bytes()
    with pytest.raises(FileError, match="out.part is there already"):
        run(folder, resume=True)
    assert (folder / "copy").read_bytes() == before


def test_names_reach_the_disk_before_the_job_ends(tmp_path, monkeypatch, quick):
    """The folder is synced after the rename, and before the journal goes."""
    folder, recorder = fresh(tmp_path), Recorder()
    with monkeypatch.context() as patch:
        use(patch, recorder)
        run(folder)
    kinds = [(kind, Path(path).name) for kind, path, *_ in recorder.log]
    for name in ("out.part", "rep.part"):
        i = kinds.index(("rename", name))
        assert kinds[i - 1] == ("fsync", name) and kinds[i + 1] == ("fsync", folder.name)
    last = [("unlink", "out.part.journal"), ("unlink", "rep.part.journal")]
    assert kinds[-2:] == last
