"""Replies of a fake hub: one function per request that huggingface_hub 2.4 makes, from a store to a reply."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.hub.store import Repository, Store, StoredFile, is_large

NAME = r"(?P<name>[^/]+/[^/]+?)"
MODEL = rf"/api/models/{NAME}"
STORAGE = rf"/storage/{NAME}/(?P<oid>[0-9a-f]{{64}})"


@dataclass(frozen=True)
class Request:
    """A request, its body read to the end."""

    method: str
    url: str
    endpoint: str
    token: str | None
    body: bytes = b""
    groups: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    @property
    def query(self) -> dict[str, str]:
        return {key: values[-1] for key, values in parse_qs(urlsplit(self.url).query).items()}

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """A response; a body that is no bytes goes out as JSON."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


Response = Callable[[Store, Request], Reply]
ROUTES: list[tuple[str, str, re.Pattern[str], Response]] = []


def route(name: str, method: str, pattern: str) -> Callable[[Response], Response]:
    """Register the reply to a method and a path; faults are planned by the name."""

    def register(response: Response) -> Response:
        ROUTES.append((name, method, re.compile(pattern), response))
        return response

    return register


def readable(store: Store, request: Request) -> Repository:
    return store.readable(request.groups["name"], request.token)


def writable(store: Store, request: Request) -> Repository:
    repository = store.readable(request.groups["name"], store.require_known(request.token))
    store.require_writer(repository.name, request.token)
    return repository


def revision_of(request: Request) -> str:
    return unquote(request.groups["revision"])


@route("create", "POST", "/api/repos/create")
def create(store: Store, request: Request) -> Reply:
    asked = request.json
    name = f"{asked['organization']}/{asked['name']}"
    store.require_writer(name, request.token)
    told = {"url": f"{request.endpoint}/{name}", "name": name}
    if name in store.repositories:
        return Reply({"error": "You already created this model repo", **told}, status=409)
    store.create(name, private=asked.get("visibility") == "private")
    return Reply(told)


@route("validate", "POST", "/api/validate-yaml")
def validate_yaml(store: Store, request: Request) -> Reply:
    return Reply({"errors": [], "warnings": []})


@route("info", "GET", rf"{MODEL}(/revision/(?P<revision>[^/]+))?")
def info(store: Store, request: Request) -> Reply:
    found = readable(store, request)
    commit = found.resolve(unquote(request.groups.get("revision") or "main"))
    siblings = [{"rfilename": path} for path in sorted(found.commits[commit])]
    return Reply(
        {"id": found.name, "sha": commit, "private": found.private, "gated": found.gated, "siblings": siblings}
    )


@route("tree", "GET", rf"{MODEL}/tree/(?P<revision>[^/]+)")
def tree(store: Store, request: Request) -> Reply:
    files = readable(store, request).files_at(revision_of(request))
    return Reply([files[path].entry(path) for path in sorted(files)])


@route("preupload", "POST", rf"{MODEL}/preupload/(?P<revision>[^/]+)")
def preupload(store: Store, request: Request) -> Reply:
    there = writable(store, request).files_at(revision_of(request))
    return Reply({"files": [upload_mode(file["path"], there) for file in request.json["files"]]})


def upload_mode(path: str, there: dict[str, StoredFile]) -> dict[str, Any]:
    """How a file is to be sent, and the hash of the one that stands in its place."""
    mode, oid = ("lfs" if is_large(path) else "regular"), {"oid": there[path].etag} if path in there else {}
    return {"path": path, "uploadMode": mode, "shouldIgnore": False, **oid}


@route("batch", "POST", rf"/{NAME}\.git/info/lfs/objects/batch")
def batch(store: Store, request: Request) -> Reply:
    repository = store.readable(request.groups["name"], store.require_known(request.token))
    wanted = [(each["oid"], each["size"]) for each in request.json["objects"]]
    objects = [
        {"oid": oid, "size": size}
        if oid in repository.objects
        else {"oid": oid, "size": size, "actions": upload_actions(request, oid, size)}
        for oid, size in wanted
    ]
    return Reply({"transfer": "basic", "objects": objects})


def upload_actions(request: Request, oid: str, size: int) -> dict[str, Any]:
    """Where an object goes, and who is asked afterwards whether it arrived."""
    address = f"{request.endpoint}/storage/{request.groups['name']}/{oid}"
    verify = {"href": f"{request.endpoint}/{request.groups['name']}.git/info/lfs/objects/verify"}
    return {"upload": {"href": f"{address}?size={size}"}, "verify": verify}


@route("upload", "PUT", STORAGE)
def upload(store: Store, request: Request) -> Reply:
    repository = store.repositories[request.groups["name"]]
    repository.receive(request.groups["oid"], int(request.query["size"]), request.body)
    return Reply(b"")


@route("verify", "POST", rf"/{NAME}\.git/info/lfs/objects/verify")
def verify(store: Store, request: Request) -> Reply:
    store.require_known(request.token)
    readable(store, request).require_object(request.json["oid"], request.json["size"])
    return Reply({})


@route("commit", "POST", rf"{MODEL}/commit/(?P<revision>[^/]+)")
def commit(store: Store, request: Request) -> Reply:
    repository = writable(store, request)
    oid = repository.commit(revision_of(request), [json.loads(line) for line in request.body.splitlines()])
    return Reply({"success": True, "commitOid": oid, "commitUrl": f"{request.endpoint}/{repository.name}/commit/{oid}"})


@route("resolve", "HEAD", rf"/{NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
@route("download", "GET", rf"/{NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
def resolve(store: Store, request: Request) -> Reply:
    repository = readable(store, request)
    store.require_access(repository, request.token)
    file = repository.file_at(revision_of(request), unquote(request.groups["path"]))
    commit_id = {"X-Repo-Commit": repository.resolve(revision_of(request))}
    large = {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(len(file.content))} if file.is_large else {}
    headers = {"ETag": f'"{quote(file.etag)}"', **commit_id, **large}
    return Reply(file.content, headers=headers)
