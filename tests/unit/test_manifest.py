"""Manifests: whole or absent, not made twice, honest about their files."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipway.errors import SlipwayError, disk_faults_explained
from slipway.manifest import (
    FolderLock,
    LockHeldError,
    ManifestError,
    atomic_path,
    fingerprint,
    hash_file,
    hashing,
    open_product,
    process_identity,
    read_manifest,
    syncing,
    verify_files,
    write_if_changed,
    write_text,
)
from slipway.manifest import lock as lock_module


def make(folder: Path, inputs: dict, content: str = "weights") -> bool:
    """Make a product as a stage does; return whether it had to do the work."""
    with open_product("stage", folder / "manifest.json", folder, inputs) as product:
        if product.restore():
            return False
        (folder / "a.bin").write_text(content)
        product.publish([folder / "a.bin"], {"n": 1})
        return True


def test_an_interrupted_write_leaves_the_old_file_and_no_litter(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_unchanged_text_keeps_its_time(tmp_path):
    target = tmp_path / "file"
    assert write_if_changed(target, "one")
    os.utime(target, (1, 1))
    assert not write_if_changed(target, "one")
    assert target.stat().st_mtime == 1
    assert write_if_changed(target, "two")
    assert target.read_text() == "two"


def test_fingerprint_ignores_the_order_of_keys_and_nothing_else():
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"a": 1, "b": [1, 2]}) != fingerprint({"a": 1, "b": [2, 1]})


def test_a_finished_product_is_published_again_without_work(tmp_path):
    assert make(tmp_path, {"x": 1})
    first = (tmp_path / "manifest.json").read_bytes()
    (tmp_path / "manifest.json").unlink()  # Snakemake deletes it before a rule runs
    assert not make(tmp_path, {"x": 1})
    assert (tmp_path / "manifest.json").read_bytes() == first


def test_other_inputs_or_a_damaged_file_are_made_anew(tmp_path):
    make(tmp_path, {"x": 1})
    assert make(tmp_path, {"x": 2})
    (tmp_path / "a.bin").write_text("WEIGHTS")  # same size
    assert make(tmp_path, {"x": 2})
    (tmp_path / "a.bin").unlink()
    assert make(tmp_path, {"x": 2})


def test_a_failed_stage_leaves_no_manifest(tmp_path):
    with pytest.raises(RuntimeError), open_product("stage", tmp_path / "manifest.json", tmp_path, {}):
        raise RuntimeError
    assert not (tmp_path / "manifest.json").exists()
    assert make(tmp_path, {})


def test_equal_work_gives_equal_bytes(tmp_path):
    for name in ("one", "two"):
        make(tmp_path / name, {"x": 1})
    one, two = ((tmp_path / name / "manifest.json").read_bytes() for name in ("one", "two"))
    assert one == two


def test_verify_names_the_file_and_the_fault(tmp_path):
    make(tmp_path, {})
    manifest = read_manifest(tmp_path / "manifest.json", "stage")
    verify_files(manifest, tmp_path)
    (tmp_path / "a.bin").write_text("WEIGHTS")
    with pytest.raises(ManifestError, match=r"a\.bin: content differs"):
        verify_files(manifest, tmp_path)
    (tmp_path / "a.bin").write_text("short")
    with pytest.raises(ManifestError, match=r"a\.bin: 5 bytes"):
        verify_files(manifest, tmp_path)


def test_a_manifest_of_another_stage_is_refused(tmp_path):
    make(tmp_path, {})
    with pytest.raises(ManifestError, match="stage 'stage'"):
        read_manifest(tmp_path / "manifest.json", "other")
    with pytest.raises(ManifestError, match="missing"):
        read_manifest(tmp_path / "no.json", "stage")


def hold_lock(path: Path) -> subprocess.Popen:
    code = (
        "import sys, time; from pathlib import Path; from slipway.manifest import FolderLock\n"
        "with FolderLock(Path(sys.argv[1]), 'test'): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_living_owner_is_respected_and_a_killed_one_replaced(tmp_path):
    path = tmp_path / "lock"
    owner = hold_lock(path)
    try:
        with pytest.raises(LockHeldError, match=f"process {owner.pid} on"):
            FolderLock(path, "test").acquire()
        owner.kill()
        owner.wait()
        with FolderLock(path, "test"):
            assert json.loads(path.read_text())["pid"] == os.getpid()
        assert not path.exists()
    finally:
        owner.kill()


def test_waiting_for_the_lock_ends_when_its_owner_does(tmp_path):
    path = tmp_path / "lock"
    owner = hold_lock(path)
    owner.kill()
    owner.wait()
    started = time.monotonic()
    with FolderLock(path, "test", wait_seconds=30):
        assert time.monotonic() - started < 20


def test_a_process_id_used_again_is_not_the_owner(tmp_path):
    path = tmp_path / "lock"
    path.write_text(json.dumps(process_identity() | {"started": 1.0, "token": "x"}))
    with FolderLock(path, "test"):
        pass


def test_an_owner_on_another_host_lives_by_its_heartbeat(tmp_path):
    path = tmp_path / "lock"
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "token": "x", "slurm_job": "77"}))
    with pytest.raises(LockHeldError, match="SLURM job 77"):
        FolderLock(path, "test").acquire()
    silent = time.time() - lock_module.SILENCE_SECONDS - 1
    os.utime(path, (silent, silent))
    with FolderLock(path, "test"):
        pass


def test_a_lock_cut_off_by_a_crash_is_nobodys(tmp_path):
    path = tmp_path / "lock"
    path.write_text('{"host": "el')
    with FolderLock(path, "test"):
        pass


def test_only_one_of_many_takes_a_stale_lock(tmp_path):
    path = tmp_path / "lock"
    path.write_text(json.dumps({"host": "x", "pid": 1, "token": "x"}))
    os.utime(path, (1, 1))
    code = (
        "import sys, time; from pathlib import Path; from slipway.manifest import FolderLock\n"
        "with FolderLock(Path(sys.argv[1]), 'test', 60):\n"
        "    log = Path(sys.argv[2]); before = log.read_text(); time.sleep(0.05); log.write_text(before + 'x')"
    )
    log = tmp_path / "log"
    log.write_text("")
    takers = [subprocess.Popen([sys.executable, "-c", code, str(path), str(log)]) for _ in range(6)]
    assert [taker.wait() for taker in takers] == [0] * 6
    assert log.read_text() == "x" * 6


WHOLE = {"format": 1, "stage": "stage", "fingerprint": "x", "inputs": {}, "files": [], "facts": {}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"5",
        b"null",
        json.dumps({key: value for key, value in WHOLE.items() if key != "files"}).encode(),
        json.dumps(WHOLE | {"files": 5}).encode(),
        json.dumps(WHOLE | {"files": [{"path": "a.bin"}]}).encode(),
        json.dumps(WHOLE | {"files": ["a.bin"]}).encode(),
        json.dumps(WHOLE | {"more": 1}).encode(),
        json.dumps({"format": 1, "stage": "stage", "files": []}).encode(),
    ],
)
def test_a_damaged_manifest_is_named_and_made_again(tmp_path, content):
    make(tmp_path, {"x": 1})
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(ManifestError, match=r"manifest\.json: .*run stage again"):
        read_manifest(tmp_path / "manifest.json", "stage")
    (tmp_path / ".complete.json").write_bytes(content)
    assert make(tmp_path, {"x": 1})
    assert read_manifest(tmp_path / "manifest.json", "stage").facts == {"n": 1}


@pytest.mark.parametrize("content", [b"[1]", b"5", b"\xff\xfe", b""])
def test_a_lock_with_anything_else_in_it_is_nobodys(tmp_path, content):
    path = tmp_path / "lock"
    path.write_bytes(content)
    with FolderLock(path, "test"):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_file_has_the_mode_that_was_asked_for(tmp_path):
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "token", "secret", mode=0o600)
        write_text(tmp_path / "open", "all may read")
    finally:
        os.umask(before)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o644


def test_a_write_that_fails_says_where(tmp_path):
    with pytest.raises(OSError) as raised, atomic_path(tmp_path / "file"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert raised.value.filename == str(tmp_path / "file")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOTDIR])
def test_what_the_disk_refuses_is_told_with_a_remedy(number):
    with pytest.raises(SlipwayError, match=rf"results/x: {os.strerror(number)}; \w+"), disk_faults_explained():
        raise OSError(number, os.strerror(number), "results/x")


def test_a_fault_of_the_program_stays_one():
    with pytest.raises(FileNotFoundError), disk_faults_explained():
        raise FileNotFoundError(errno.ENOENT, "no such file", "x")


def test_files_are_on_the_disk_when_the_work_meanwhile_is_done(tmp_path, monkeypatch):
    forced = []

    def slowly(handle):
        time.sleep(0.05)
        forced.append(handle)

    monkeypatch.setattr(os, "fsync", slowly)
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with syncing([tmp_path / "a", tmp_path / "b"]):
        assert len(forced) < 2  # nobody waits for them here
    assert len(forced) == 2


def test_what_the_disk_refuses_meanwhile_is_an_error_afterwards(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    done = []
    with pytest.raises(OSError, match="input/output error"), syncing([tmp_path]):
        done.append("the work")
    assert done == ["the work"]


def test_digests_are_there_when_the_work_meanwhile_is_done(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_text(path.name)
    with hashing(paths) as digests:
        pass
    assert digests == {path: hash_file(path) for path in paths}
    with pytest.raises(FileNotFoundError), hashing([tmp_path / "c"]):
        pass


def test_a_product_takes_the_digests_that_it_is_given_and_makes_the_others(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(name)
    with open_product("stage", tmp_path / "manifest.json", tmp_path, {}) as product:
        given = {tmp_path / "a": hash_file(tmp_path / "a")}
        manifest = product.publish([tmp_path / "a", tmp_path / "b"], {}, given)
    verify_files(manifest, tmp_path)
    assert [entry.path for entry in manifest.files] == ["a", "b"]


def test_the_sidecar_tells_the_surroundings_whether_the_product_was_looked_for_or_not(tmp_path):
    for name in ("looked for", "not"):
        folder = tmp_path / name
        folder.mkdir()
        with open_product("stage", folder / "manifest.json", folder, {}) as product:
            assert name == "not" or not product.restore()
            product.publish([], {})
        sidecar = json.loads((folder / "provenance.json").read_text())
        assert sidecar["packages"]["slipway"] and sidecar["host"] and sidecar["seconds"] >= 0
