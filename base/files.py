"""The seam to the disk: everything that afterlog asks of a file system, and nothing else.

`Files` and `File` are protocols. `OsFiles` is the real one; the tests bring a simulated disk that drops unsynced bytes,
tears writes at any byte and fails the k-th call. No other module opens a file or asks `os` anything.

What callers rely on:

- `File.append` writes everything or raises; after a raise the file may be longer by any part of the data.
- `File.sync` makes the bytes durable, not the name; `Files.sync_folder` makes names durable, not bytes.
- `Files.rename` is atomic: at any crash the name leads to the old file or to the new one.
- `Files.link` is atomic and never replaces: of callers that race for a name, in any process, exactly one gets it.
- A mapping stays readable after `unlink`. What the disk does not give of it (a bad sector, a file that somebody cut)
  reads as zeros from then on, kills nobody, and is told by `lost`: so bytes that fail a check can say why, and
  bytes that pass are only good if nothing was lost while they were read (docs/decisions/0030).
- `Files.scratch` begins empty and has no name: neither a crash nor a kill leaves anything of it to be found.
- What a call to the disk raises is a StorageError (`failed_call`): StorageFull, OutOfResources or DiskFailed, whose
  leaves are a FileNotFoundError and so on. After OutOfResources nothing was changed by that call, but that an append or
  a scratch pwrite may have written a part.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Protocol, Self
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from afterlog.base.errors import (
    CorruptFile,
    DiskFailed,
    FileMissing,
    FileTaken,
    IsAFolder,
    NotAFolder,
    OutOfResources,
    StorageError,
    StorageFull,
    StoreForked,
    StoreLocked,
    StoreReplaced,
)

try:
    from afterlog.base._mapping import Mapping
except ImportError:  # no compiler: what cannot be read kills, as it does anybody who maps files

    class Mapping(mmap.mmap):  # type: ignore[no-redef]
        """A mapping that loses nothing, and that its disk can kill."""

        lost_pages = 0
        first_lost = -1

        def __new__(cls, descriptor: int, size: int) -> Self:
            return super().__new__(cls, descriptor, size, prot=mmap.PROT_READ)


Bytes = npt.NDArray[np.uint8]
Data = bytes | bytearray | memoryview | Bytes

_IOV_MAX = 1024
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WRITING = ("append", "create", "make_folder", "rename", "link", "lock", "scratch", "scratch pwrite")
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_LEAVES: dict[int, type[DiskFailed]] = {
    errno.ENOENT: FileMissing, errno.EEXIST: FileTaken, errno.ENOTDIR: NotAFolder, errno.EISDIR: IsAFolder
}  # fmt: skip
_NOT_HERE = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)
"""What a file system says that does not know F_FULLFSYNC: network shares."""
TEMPORARY_SUFFIX = ".tmp"
_COPIED_BYTES = 1 << 20


class File(Protocol):
    """One open file."""

    path: Path

    def size(self) -> int: ...

    def append(self, data: Sequence[Data]) -> None:
        """Write all of `data` at the end. Raises StorageFull or OSError; then a part may be written."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""

    def sync(self) -> None:
        """The bytes survive a power cut once it returns. If it raises nobody knows: do not call it again.

        fdatasync; on macOS F_FULLFSYNC, whose fsync leaves them in the drive's cache; fsync where there is neither.
        """

    def truncate(self, size: int) -> None: ...

    def map(self, size: int) -> Bytes:
        """The first `size` bytes as a read-only uint8 array over a mapping; `size` is at most the file's size."""

    def close(self) -> None: ...


class ScratchFile(Protocol):
    """Room on the disk without a name. Any thread may read and write; who writes what another reads is their affair."""

    def pread(self, parts: Sequence[tuple[memoryview, int]]) -> int:
        """Fill each buffer with the bytes from a position on, in turn; how many, up to one that cannot be filled."""

    def pwrite(self, data: Data, position: int) -> None:
        """Write all of `data` there. Raises StorageFull or OSError; then a part may be written."""

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock that is held until `release`."""

    def release(self) -> None: ...

    def serves(self) -> None:
        """Tell whoever finds it taken that its holder lets others in, or is about to."""

    def check(self) -> None:
        """Raises StoreReplaced where its name leads to another file by now, or to none: somebody else may hold that."""


class FileStamp(NamedTuple):
    """By which a file is known again, that nobody has changed."""

    size: int
    number: int
    """Of the file, in its file system: its inode."""
    changed_ns: int
    """When its bytes were changed last."""
    names: int
    """How many it has."""


class Files(Protocol):
    """One file system."""

    def create(self, path: Path) -> File:
        """A new, empty file, open for appending. FileExistsError if the name is taken."""

    def open(self, path: Path) -> File:
        """An existing file, open for reading and appending. FileNotFoundError, IsADirectoryError."""

    def scratch(self, path: Path) -> ScratchFile:
        """A file to write and read again, as long as it is open. What is at `path` goes, and the name with it."""

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, sorted. FileNotFoundError if there is no folder."""

    def exists(self, path: Path) -> bool: ...

    def stamp(self, path: Path) -> FileStamp:
        """What is known of a file without reading it. FileNotFoundError."""

    def free_bytes(self, folder: Path) -> int:
        """The room that is left on its file system, for who is not its administrator."""

    def make_folder(self, path: Path) -> None:
        """Make the folder; its parent must exist. FileExistsError if the name is taken."""

    def rename(self, source: Path, target: Path) -> None: ...

    def link(self, source: Path, target: Path) -> None:
        """Give the file a second name. FileExistsError if the name is taken."""

    def unlink(self, path: Path) -> None: ...

    def remove_folder(self, path: Path) -> None:
        """Remove a folder that is empty. FileNotFoundError, NotADirectoryError; DiskFailed where something is in it."""

    def sync_folder(self, folder: Path) -> None:
        """The names in it survive a power cut once it returns: fsync, on macOS F_FULLFSYNC."""

    def lock(self, path: Path) -> Lock:
        """Take the lock file at `path`, or raise StoreLocked with the holder's pid."""


class _OwnDescriptor:
    """A descriptor, which is closed once and by nobody else, whatever strikes.

    `os.close` and a line that forgets the number are two steps: an exception between them (a signal that came during
    the call) closes the number again later, whoever has it by then. A `FileIO` forgets it before it closes it, in C.
    The number is kept beside it, since to ask for it is a call.
    """

    _descriptor = -1
    _owner: FileIO | None = None

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over, also where it raises OSError: of a folder, which is no file."""
        try:
            self._owner = FileIO(descriptor, "rb")
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def close(self) -> None:
        """Nothing, where it is closed. After it, calls fail: no number is kept that could be somebody else's."""
        self._descriptor = -1
        if self._owner is not None:
            self._owner.close()

    __del__ = close  # of an operation that was interrupted


class OsFile(_OwnDescriptor):
    """`File` over a descriptor. Unbuffered: what `append` returned from survives a kill."""

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(descriptor)
        self.path = path

    def size(self) -> int:
        with _asking("size", self.path):
            return os.fstat(self._descriptor).st_size

    def append(self, data: Sequence[Data]) -> None:
        try:
            written = os.writev(self._descriptor, data) if len(data) == 1 else 0
            if written and written == memoryview(data[0]).nbytes:  # as a rule
                return
            views = [memoryview(part).cast("B") for part in data]
            left = [view[written:] for view in views if view.nbytes]
            while left:
                written = os.writev(self._descriptor, left[:_IOV_MAX])
                while left and written >= left[0].nbytes:
                    written -= left.pop(0).nbytes
                if written:
                    left[0] = left[0][written:]
        except OSError as error:
            raise failed_call("append", error, self.path) from error

    def pread(self, size: int, position: int) -> bytes:
        parts = []
        try:
            while size:
                part = os.pread(self._descriptor, size, position)
                if not part:
                    break
                parts.append(part)
                size -= len(part)
                position += len(part)
        except OSError as error:
            raise failed_call("pread", error, self.path) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def sync(self) -> None:
        try:
            if hasattr(fcntl, "F_FULLFSYNC") or not hasattr(os, "fdatasync"):
                _full_sync(self._descriptor)
            else:
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise failed_call("sync", error, self.path) from error

    def truncate(self, size: int) -> None:
        with _asking("truncate", self.path):
            os.ftruncate(self._descriptor, size)

    def map(self, size: int) -> Bytes:
        if size > self.size():  # refuses a closed file too: of descriptor -1 mmap would make anonymous zeros
            raise ValueError("mmap length is greater than file size")
        if size == 0:
            return np.empty(0, np.uint8)
        with _asking("map", self.path):
            return np.frombuffer(Mapping(self._descriptor, size), np.uint8)


class OsScratchFile(_OwnDescriptor):
    """`ScratchFile` over a descriptor."""

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(descriptor)
        self._path = path

    def pread(self, parts: Sequence[tuple[memoryview, int]]) -> int:
        descriptor = self._descriptor
        try:
            for filled, (buffer, position) in enumerate(parts):
                read = _pread_into(descriptor, buffer, position)
                while 0 < read < len(buffer) and (more := _pread_into(descriptor, buffer[read:], position + read)):
                    read += more
                if read < len(buffer):
                    return filled
        except OSError as error:
            raise failed_call("scratch pread", error, self._path) from error
        return len(parts)

    def pwrite(self, data: Data, position: int) -> None:
        left = memoryview(data).cast("B")
        with _asking("scratch pwrite", self._path):
            while left.nbytes:
                written = os.pwrite(self._descriptor, left, position)
                left = left[written:]
                position += written


SERVES: Final = b"serves"
"""In a lock's file, behind the pid of a holder that lets others in."""


class OsLock(_OwnDescriptor):
    """`flock` on a file with the holder's pid in it, and whether it serves others.

    A second handle in the same process is refused, too.

    A lock lasts until the last descriptor of it is closed, and a forked child has one: it closes that at once, or the
    store would stay locked when the process that opened it is killed (docs/decisions/0026).
    """

    _held: ClassVar[WeakValueDictionary[int, OsLock]] = WeakValueDictionary()

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(descriptor)
        self._path = path
        self._own = _identity(os.fstat(descriptor))
        self._held[id(self)] = self

    def take(self) -> None:
        """Lock without waiting, or raise BlockingIOError."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._tell(b"")

    def serves(self) -> None:
        self._tell(SERVES)

    def _tell(self, what: bytes) -> None:
        with contextlib.suppress(OSError):  # it is for people: a full disk must not keep the store shut
            os.pwrite(self._descriptor, b"%-19d\n%-7s\n" % (os.getpid(), what), 0)

    def check(self) -> None:
        try:
            found = _identity(os.lstat(self._path))
        except (FileNotFoundError, NotADirectoryError):
            found = None
        except OSError as error:
            raise failed_call("stat", error, self._path) from error
        if found != self._own:
            raise replaced(self._path, is_there=found is not None)

    def holder(self) -> str:
        """The pid in the file."""
        return os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"

    def release(self) -> None:
        self._held.pop(id(self), None)
        self.close()

    __del__ = release  # of an open that was interrupted

    @classmethod
    def let_go_in_child(cls) -> None:
        """Close what was inherited: what the parent holds stays locked."""
        for lock in list(cls._held.values()):
            lock.release()


os.register_at_fork(after_in_child=OsLock.let_go_in_child)


def _to_owner(made: Path | int, path: Path) -> None:
    """What root makes in another user's folder is that user's: else who has the store could not open it any more.

    made: its descriptor; a folder has none.
    """
    if os.geteuid():
        return
    folder = os.stat(path.parent)
    if folder.st_uid:
        with contextlib.suppress(PermissionError):  # root of a container, or of a file system that squashes it
            os.chown(made, folder.st_uid, folder.st_gid, follow_symlinks=isinstance(made, int))


class OsFiles:
    """The file system of this machine. Symbolic links are not followed for files."""

    _FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW

    def create(self, path: Path) -> OsFile:
        with _asking("create", path):
            file = OsFile(path, os.open(path, self._FLAGS | os.O_CREAT | os.O_EXCL, 0o600))
            _to_owner(file._descriptor, path)
            return file

    def open(self, path: Path) -> OsFile:
        with _asking("open", path):
            return OsFile(path, os.open(path, self._FLAGS))

    def scratch(self, path: Path) -> OsScratchFile:
        with _asking("scratch", path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.unlink(path)
        return OsScratchFile(path, descriptor)

    def names(self, folder: Path) -> list[str]:
        with _asking("names", folder):
            return sorted(os.listdir(folder))

    def exists(self, path: Path) -> bool:
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:  # no answer
            raise failed_call("exists", error, path) from error
        return True

    def stamp(self, path: Path) -> FileStamp:
        with _asking("stamp", path):
            found = os.lstat(path)
        return FileStamp(found.st_size, found.st_ino, found.st_mtime_ns, found.st_nlink)

    def free_bytes(self, folder: Path) -> int:
        with _asking("free_bytes", folder):
            found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def make_folder(self, path: Path) -> None:
        with _asking("make_folder", path):
            os.mkdir(path, 0o700)
            _to_owner(path, path)

    def rename(self, source: Path, target: Path) -> None:
        with _asking("rename", target):
            os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        with _asking("link", target):
            os.link(source, target, follow_symlinks=False)

    def unlink(self, path: Path) -> None:
        with _asking("unlink", path):
            os.unlink(path)

    def remove_folder(self, path: Path) -> None:
        with _asking("remove_folder", path):
            os.rmdir(path)

    def sync_folder(self, folder: Path) -> None:
        with _asking("open", folder):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _asking("sync_folder", folder):
                _full_sync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> OsLock:
        with _asking("lock", path):
            lock = OsLock(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            if not os.fstat(lock._descriptor).st_size:  # it is new
                _to_owner(lock._descriptor, path)
        try:
            lock.take()
        except BlockingIOError:
            holder = lock.holder()
            lock.release()
            raise store_locked(holder, path) from None
        except OSError as error:
            lock.release()
            raise failed_call("lock", error, path) from error
        except BaseException:
            lock.release()
            raise
        return lock


class OwnFiles:
    """The files of who holds a lock on their folder: nothing is opened or changed by its path once that is another's.

    A folder is moved away and a backup copied to its name while a process has it open, or the lock's file is removed:
    then the names lead to what somebody else may write. What is open by then is the old one's, and stays.
    """

    def __init__(self, files: Files, lock: Lock) -> None:
        self._files = files
        self._lock = lock
        self.names, self.exists, self.stamp = files.names, files.exists, files.stamp
        self.free_bytes = files.free_bytes
        self.lock = files.lock

    def create(self, path: Path) -> File:
        self._lock.check()
        return self._files.create(path)

    def open(self, path: Path) -> File:
        self._lock.check()
        return self._files.open(path)

    def scratch(self, path: Path) -> ScratchFile:
        self._lock.check()
        return self._files.scratch(path)

    def make_folder(self, path: Path) -> None:
        self._lock.check()
        self._files.make_folder(path)

    def rename(self, source: Path, target: Path) -> None:
        self._lock.check()
        self._files.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._lock.check()
        self._files.link(source, target)

    def unlink(self, path: Path) -> None:
        self._lock.check()
        self._files.unlink(path)

    def remove_folder(self, path: Path) -> None:
        self._lock.check()
        self._files.remove_folder(path)

    def sync_folder(self, folder: Path) -> None:
        self._lock.check()
        self._files.sync_folder(folder)


class ReadOnlyFiles(OsFiles):
    """The same, to look only: it needs no permission to write, and cannot. Symbolic links are followed."""

    _FLAGS = os.O_RDONLY | os.O_CLOEXEC


def publish(files: Files, path: Path, data: Sequence[Data]) -> None:
    """Put a whole file under `path`, durably and atomically."""
    with publishing(files, path) as file:
        file.append(data)


@contextlib.contextmanager
def publishing(files: Files, path: Path, attempt: str = "", *, sync_name: bool = True) -> Iterator[File]:
    """A new file to append to, put under `path` at the end of the block: sync, rename, sync of the folder.

    Until then it has a temporary name; where the block raises it goes, and `path` stays as it was. Where several
    processes may publish the same file at a time, each gives an `attempt` of its own (`unused_name`). Who publishes
    several leaves out `sync_name`, and syncs the folder once.
    """
    temporary = temporary_path(path, attempt)
    with contextlib.suppress(FileNotFoundError):
        files.unlink(temporary)
    file = files.create(temporary)
    try:
        yield file
        file.sync()
    except BaseException:
        with contextlib.suppress(OSError):  # what did not fit must not keep the room
            files.unlink(temporary)
        raise
    finally:
        file.close()
    files.rename(temporary, path)
    if sync_name:
        files.sync_folder(path.parent)


def temporary_path(path: Path, attempt: str = "") -> Path:
    """The name under which an attempt makes what is to become `path`."""
    return path.with_name(f"{path.name}{attempt and '.'}{attempt}{TEMPORARY_SUFFIX}")


def copy_file(files: Files, source: Path, target: Path, size: int | None = None) -> int:
    """A new file of the first `size` bytes of another, or of all; how many. Not synced. CorruptFile of fewer."""
    with opened(files, source) as file:
        left = file.size() if size is None else size
        copy, position = files.create(target), 0
        try:
            while position < left:
                part = file.pread(min(left - position, _COPIED_BYTES), position)
                if not part:
                    raise CorruptFile(f"{left} bytes were written, fewer are left", path=source, position=position)
                copy.append([part])
                position += len(part)
        finally:
            copy.close()
    return left


def remove_tree(files: Files, path: Path) -> None:
    """Remove a folder and all that is in it; nothing where nothing is there. Not durable: sync the folder it was in."""
    for name in files.names(path) if files.exists(path) else ():
        try:
            files.unlink(path / name)
        except OSError:  # a folder, as a rule: Linux says EISDIR, POSIX EPERM
            remove_tree(files, path / name)
    if files.exists(path):
        files.remove_folder(path)


def read_file(files: Files, path: Path) -> bytes:
    """All bytes of a small file. FileNotFoundError if it is not there."""
    with opened(files, path) as file:
        return file.pread(file.size(), 0)


def map_file(files: Files, path: Path) -> Bytes:
    """All bytes of a sealed file, mapped. FileNotFoundError if it is not there."""
    with opened(files, path) as file:
        return file.map(file.size())


class Lost(NamedTuple):
    """What the disk did not give of a mapped file: whole pages, each when it was first touched; they are zeros now."""

    pages: int = 0
    first: int = -1
    """The first byte of the first of them; -1: all is there so far."""


NOTHING_LOST = Lost()


def lost(data: Bytes) -> Lost:
    """What is lost so far of the mapping that `data` looks at; in bytes of the file."""
    base: object = data
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, Mapping) and base.lost_pages:
        return Lost(base.lost_pages, base.first_lost)
    return NOTHING_LOST


@contextlib.contextmanager
def opened(files: Files, path: Path) -> Iterator[File]:
    """The file, closed at the end of the block."""
    file = files.open(path)
    try:
        yield file
    finally:
        file.close()


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder on this machine's disk, removed at the end of the block with all that is in it.

    `parent`: by default as TMPDIR says, or what is usual here.
    """
    from tempfile import TemporaryDirectory  # which comes with `shutil`, `random` and more

    with TemporaryDirectory(prefix="afterlog-", dir=parent) as name:
        yield Path(name)


class Process:
    """This process. What it opened is not a forked child's; an attribute tells, at the price of a comparison."""

    def __init__(self) -> None:
        self.id = os.getpid()
        os.register_at_fork(after_in_child=self._forked)

    def check_is(self, owner: int) -> None:
        """StoreForked where it is another: to be asked before any lock, which the parent may have held as it forked."""
        if self.id != owner:
            raise StoreForked("this is a forked child, the store belongs to its parent: open stores after the fork")

    def _forked(self) -> None:
        self.id = os.getpid()


PROCESS = Process()


def unused_name() -> str:
    """32 hex digits that nobody else has: 128 random bits."""
    return os.urandom(16).hex()


def store_locked(holder: object, path: Path) -> StoreLocked:
    """What `Files.lock` raises."""
    return StoreLocked(
        f"the store is open in process {holder}: close it there, or let several have it, with shared=True in each, "
        "or with serve=True (afterlog serve) in one and afterlog.connect(folder) in the others",
        path=path,
    )


def replaced(path: Path, *, is_there: bool) -> StoreReplaced:
    """What `Lock.check` raises."""
    what = "is another file" if is_there else "is gone"
    return StoreReplaced(
        f"the store's lock file {what}: somebody moved or restored the folder while it was open here, and this process "
        "writes nothing into it any more. Close it here; what it had is where the folder was moved to",
        path=path,
    )


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _full_sync(descriptor: int) -> None:
    """fsync; on macOS what goes through the drive's cache too, which its fsync does not."""
    command: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if command is not None:
        try:
            fcntl.fcntl(descriptor, command)
            return
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise  # it was tried and failed: a second one that succeeds would tell nothing
    os.fsync(descriptor)


def _pread_into(descriptor: int, buffer: memoryview, position: int) -> int:
    """preadv; a pread and a copy where it is missing: macOS before 11."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], position)
    data = os.pread(descriptor, len(buffer), position)
    buffer[: len(data)] = data
    return len(data)


def failed_call(call: str, error: OSError, path: Path) -> StorageError:
    """What a call to the disk raises in place of what the system said.

    A sync that failed is a DiskFailed whatever the reason, since nobody knows what it made durable; so is a truncate,
    which is what takes a failed append back. A folder that could not even be opened was not synced.
    """
    if isinstance(error, StorageError):
        return error
    number = error.errno or errno.EIO
    why = f"{call}: {error.strerror or error}"
    if number in _FULL and call in _WRITING:
        return StorageFull("no room left to write", path=path)
    if number == errno.EFAULT:  # a system call gets no signal
        return CorruptFile("what is to be written here lies in a file that cannot be read", path=path)
    is_unknown = call in ("sync", "truncate") or (call == "sync_folder" and number == errno.ENOMEM)
    if number in _NO_RESOURCES and not is_unknown:
        return OutOfResources(
            f"{why}; try again when there are fewer files open, or more memory", path=path, number=number
        )
    return _LEAVES.get(number, DiskFailed)(why, path=path, number=number)


@contextlib.contextmanager
def _asking(call: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise failed_call(call, error, path) from error
