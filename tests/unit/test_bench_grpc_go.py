"""The no-op on grpc-go: what it says where it cannot be built, and the descriptors that it is built from."""

from pathlib import Path

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from bench import grpc_go


def test_what_is_missing_is_said_with_its_packages() -> None:
    """One line, and only of what is not there."""
    everything = grpc_go.lacking(())
    assert everything is not None
    assert "\n" not in everything
    assert everything.startswith("noop-grpc-go: skipped: no go, no protoc-gen-go, no grpc-go ")
    assert "apt-get install golang-go golang-goprotobuf-dev golang-google-grpc-dev" in everything
    assert grpc_go.lacking({grpc_go.GO, grpc_go.LIBRARY}) == (
        "noop-grpc-go: skipped: no protoc-gen-go (on Debian 12: apt-get install golang-goprotobuf-dev)"
    )
    assert grpc_go.lacking(set(grpc_go.PACKAGES)) is None


def test_it_looks_for_tools_on_the_path_and_for_libraries_in_each_gopath(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, first, second = (tmp_path / name for name in ("bin", "first", "second"))
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("GOPATH", f"{first}:{second}")
    folders = grpc_go.gopath()
    assert folders[:2] == [str(first), str(second)]
    assert grpc_go.found(folders[:2]) == set()
    (second / "src" / "google.golang.org" / "grpc").mkdir(parents=True)
    assert grpc_go.found(folders[:2]) == {grpc_go.LIBRARY}
    (tools / "go").touch(mode=0o755)
    assert grpc_go.found(folders[:2]) == {grpc_go.LIBRARY, grpc_go.GO}


def test_its_messages_are_the_real_ones_whole() -> None:
    """A pool of nothing but these descriptors reads what the generated code wrote, and knows every field of it."""
    pool = DescriptorPool()
    files = grpc_go.descriptors().file
    for file in files:
        pool.Add(file)
    assert not any(name.startswith(("validate/", "udpa/")) for file in files for name in file.dependency)
    theirs = external_processor_pb2.ProcessingRequest
    ours = pool.FindMessageTypeByName(theirs.DESCRIPTOR.full_name)
    assert {(each.number, each.name, each.type) for each in ours.fields} == {
        (each.number, each.name, each.type) for each in theirs.DESCRIPTOR.fields
    }
    request = theirs()
    header = request.request_headers.headers.headers.add()
    header.key, header.raw_value = ":path", b"/v1/models"
    request.attributes["envoy.filters.http.ext_proc"].fields["request.id"].string_value = "r-1"
    request.metadata_context.filter_metadata["recursant"].fields["agent"].string_value = "chat"
    read = GetMessageClass(ours).FromString(request.SerializeToString())
    assert read.SerializeToString(deterministic=True) == request.SerializeToString(deterministic=True)
    assert read.request_headers.headers.headers[0].raw_value == b"/v1/models"
    assert read.attributes["envoy.filters.http.ext_proc"].fields["request.id"].string_value == "r-1"


def test_dependencies_come_first_and_each_has_a_go_package() -> None:
    files = grpc_go.descriptors()
    seen: set[str] = set()
    for file in files.file:
        assert seen.issuperset(file.dependency)
        seen.add(file.name)
    packages = grpc_go.packages(files)
    assert "" not in packages
    generated = [name for names in packages.values() for name in names]
    assert "envoy/service/ext_proc/v3/external_processor.proto" in generated
    assert sorted([*generated, *(name for name in seen if name.startswith("google/protobuf/"))]) == sorted(seen)


def test_a_public_import_is_refused() -> None:
    """It is counted by its place, which leaving out another import would change."""
    file = FileDescriptorProto(name="a.proto", dependency=["validate/validate.proto", "b.proto"], public_dependency=[1])
    with pytest.raises(ValueError, match=r"a\.proto: has a public or weak import"):
        grpc_go.without_annotations(file)
