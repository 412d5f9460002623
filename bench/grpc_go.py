"""The no-op on grpc-go: whether it can be built here, and building it from bench/noop_go.

What it needs comes with Debian's packages, the libraries as source in a GOPATH, so nothing is fetched. The Go code of
the messages is generated from the descriptors that the Python no-op has, so both parse the same messages whole.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

SERVER = "noop-grpc-go"
SOURCE = Path(__file__).parent / "noop_go" / "main.go"
# Where Debian puts Go libraries; those of a GOPATH of one's own come first.
DEBIAN_GOPATH = "/usr/share/gocode"
_GRPC = "google.golang.org/grpc"
# What it needs, and the package of Debian 12 that has it.
GO, PLUGIN, LIBRARY = "go", "protoc-gen-go", "grpc-go"
PACKAGES = {GO: "golang-go", PLUGIN: "golang-goprotobuf-dev", LIBRARY: "golang-google-grpc-dev"}
# Imported for the sake of options alone, which no server reads.
_ANNOTATIONS = ("envoy/annotations/", "google/protobuf/descriptor.proto", "udpa/", "validate/", "xds/annotations/")
# Messages that the library of Go brings, under paths that every version of it has.
_WELL_KNOWN = "google/protobuf/"
_WELL_KNOWN_GO = "github.com/golang/protobuf/ptypes"


def gopath() -> list[str]:
    """Folders that may hold Go libraries."""
    return [*(each for each in os.environ.get("GOPATH", "").split(os.pathsep) if each), DEBIAN_GOPATH]


def found(folders: Sequence[str]) -> set[str]:
    """What there is of `PACKAGES` on this machine; `folders` as of `gopath`."""
    have = {tool for tool in (GO, PLUGIN) if shutil.which(tool)}
    if any((Path(folder) / "src" / _GRPC).is_dir() for folder in folders):
        have.add(LIBRARY)
    return have


def lacking(have: Collection[str]) -> str | None:
    """One line that says what is missing and what brings it; None where everything is there."""
    absent = [each for each in PACKAGES if each not in have]
    if not absent:
        return None
    packages = " ".join(PACKAGES[each] for each in absent)
    return f"{SERVER}: skipped: no {', no '.join(absent)} (on Debian 12: apt-get install {packages})"


def missing() -> str | None:
    """Why the server cannot be built here, in one line; None where it can."""
    return lacking(found(gopath()))


def descriptors() -> FileDescriptorSet:
    """The file that describes ext_proc and those that it needs, dependencies first."""
    files: dict[str, FileDescriptorProto] = {}

    def add(source: Any) -> None:
        if source.name in files or source.name.startswith(_ANNOTATIONS):
            return
        for each in source.dependencies:
            add(each)
        files[source.name] = without_annotations(FileDescriptorProto.FromString(source.serialized_pb))

    add(external_processor_pb2.DESCRIPTOR)
    return FileDescriptorSet(file=files.values())


def without_annotations(file: FileDescriptorProto) -> FileDescriptorProto:
    """The same messages, but annotations are not imported; what they say stays, as fields that nobody knows.

    Raises:
        ValueError: the file imports something publicly, which is counted by its place among the imports.
    """
    if file.public_dependency or file.weak_dependency:
        raise ValueError(f"{file.name}: has a public or weak import")
    bare = FileDescriptorProto()
    bare.CopyFrom(file)
    bare.dependency[:] = [each for each in file.dependency if not each.startswith(_ANNOTATIONS)]
    return bare


def packages(files: FileDescriptorSet) -> dict[str, list[str]]:
    """The files to generate code from, by their Go package."""
    result: dict[str, list[str]] = {}
    for file in files.file:
        if not file.name.startswith(_WELL_KNOWN):
            result.setdefault(file.options.go_package, []).append(file.name)
    return result


def versions() -> str:
    """Of the library and the compiler that build it, as far as they tell."""
    said = subprocess.run([GO, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout.strip()
    for folder in gopath():
        file = Path(folder) / "src" / _GRPC / "version.go"
        if file.is_file() and (version := re.search(r'Version = "(.+)"', file.read_text())):
            return f"grpc-go {version[1]}, {said}"
    return said


async def build(folder: Path) -> Path:
    """Generate and compile into a new folder; the program. Go's own cache makes the second time quick.

    Raises:
        RuntimeError: it does not compile; with what the compiler said.
    """
    sources = folder / "src"
    sources.mkdir(parents=True)
    files = descriptors()
    described = folder / "ext_proc.binpb"
    described.write_bytes(files.SerializeToString())
    # `google/protobuf/struct.proto` is the package `.../ptypes/struct`.
    known = (file.name for file in files.file if file.name.startswith(_WELL_KNOWN))
    mapping = ",".join(f"M{each}={_WELL_KNOWN_GO}/{Path(each).stem}" for each in known)
    for names in packages(files).values():
        command = ("-m", "grpc_tools.protoc", f"--descriptor_set_in={described}", f"--go_out={mapping}:{sources}")
        await _run(sys.executable, *command, *names)
    program = folder / SERVER
    # Flags that somebody set for modules would be refused.
    environment = {"GO111MODULE": "off", "GOFLAGS": "", "GOPATH": os.pathsep.join((str(folder), *gopath()))}
    # The cache must not tell one folder from another.
    await _run(GO, "build", "-trimpath", "-o", str(program), str(SOURCE), **environment)
    return program


async def _run(*command: str, **environment: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {said.decode(errors='replace')}")
