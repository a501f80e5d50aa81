"""What a stand-in of the hub keeps: repositories of commits, and the objects that commits name by their sha256.

It says no as the hub does: to a commit that names an object never uploaded, to a file deleted that is not there, and
to whoever may not read or write.
"""

import base64
import hashlib
import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

LARGE_SUFFIXES = (".safetensors", ".gguf", ".bin", ".png")
EMPTY_COMMIT = "0" * 40


class Refusal(Exception):  # noqa: N818  # what a server says, and no error of its own
    """A response that is no success.

    Attributes:
        status: Of the response.
        code: What huggingface_hub tells apart by, in X-Error-Code.
    """

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.code = HTTPStatus(status), code


@dataclass(frozen=True)
class StoredFile:
    """A file of a commit; a large one stands in git as a pointer to its object."""

    content: bytes
    is_large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def pointer(self) -> bytes:
        return f"oid sha256:{self.sha256}\nsize {len(self.content)}\n".encode()

    @property
    def blob_id(self) -> str:
        return git_hash(self.pointer if self.is_large else self.content)

    @property
    def etag(self) -> str:
        return self.sha256 if self.is_large else self.blob_id

    def entry(self, path: str) -> dict[str, Any]:
        """As a tree lists it."""
        plain = {"type": "file", "path": path, "size": len(self.content), "oid": self.blob_id}
        large = {"oid": self.sha256, "size": len(self.content), "pointerSize": len(self.pointer)}
        return {**plain, "lfs": large} if self.is_large else plain


Files = dict[str, StoredFile]


@dataclass
class Repository:
    """A model repository.

    Attributes:
        name: owner/name.
        branches: Last commit of each.
        commits: Files of each.
        objects: Uploaded, by sha256.
        readers: Tokens that a gated or private one lets in, beside those of its owner.
    """

    name: str
    private: bool = False
    gated: bool = False
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Files] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    readers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        attributes = StoredFile(b"*.safetensors filter=lfs\n", is_large=False)
        self.branches["main"] = self.add_commit({".gitattributes": attributes}, EMPTY_COMMIT, "initial commit")

    def add_commit(self, files: Files, parent: str, summary: str) -> str:
        """Keep files as a commit, on no branch yet; its id."""
        blobs = sorted((path, file.blob_id) for path, file in files.items())
        commit = git_hash(json.dumps([parent, summary, blobs, len(self.commits)]).encode(), kind="commit")
        self.commits[commit] = files
        return commit

    def resolve(self, revision: str) -> str:
        """The commit that a branch or a commit id names."""
        commit = self.branches.get(revision, revision)
        if commit not in self.commits:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def files_at(self, revision: str) -> Files:
        return self.commits[self.resolve(revision)]

    def file_at(self, revision: str, path: str) -> StoredFile:
        files = self.files_at(revision)
        if path not in files:
            raise Refusal(404, f"Entry not found: {path}", "EntryNotFound")
        return files[path]

    def move(self, **contents: bytes) -> None:
        """Somebody else's commit: these files beside or instead of what stands there."""
        parent = self.branches["main"]
        changed = {name.replace("__", "."): content for name, content in contents.items()}
        files = {path: StoredFile(content, is_large(path)) for path, content in changed.items()}
        self.branches["main"] = self.add_commit({**self.commits[parent], **files}, parent, "somebody else's")

    def receive(self, oid: str, size: int, content: bytes) -> None:
        """Keep an uploaded object, if it is the one that was announced."""
        if len(content) != size or hashlib.sha256(content).hexdigest() != oid:
            raise Refusal(400, f"{len(content)} bytes are not the object {oid} of {size} bytes")
        self.objects[oid] = content

    def require_object(self, oid: str, size: int) -> bytes:
        if oid not in self.objects or len(self.objects[oid]) != size:
            raise Refusal(422, f"LFS object {oid} of {size} bytes was never uploaded")
        return self.objects[oid]

    def commit(self, revision: str, lines: list[dict[str, Any]]) -> str:
        """Apply the lines of a commit, all or none; its id."""
        parent = self.resolve(revision)
        files = dict(self.commits[parent])
        for line in lines[1:]:
            self.apply(files, line["key"], line["value"])
        self.branches[revision] = self.add_commit(files, parent, lines[0]["value"]["summary"])
        return self.branches[revision]

    def apply(self, files: Files, key: str, value: dict[str, Any]) -> None:
        path = value["path"]
        if key == "file":
            files[path] = StoredFile(base64.b64decode(value["content"], validate=True), is_large=False)
        elif key == "lfsFile":
            files[path] = StoredFile(self.require_object(value["oid"], value["size"]), is_large=True)
        elif key != "deletedFile":
            raise Refusal(400, f"unknown operation {key}")
        elif files.pop(path, None) is None:
            raise Refusal(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")


@dataclass
class Store:
    """All repositories, and who may do what.

    Attributes:
        owners: The namespaces that each token may write to.
    """

    owners: dict[str, set[str]]
    repositories: dict[str, Repository] = field(default_factory=dict)

    def create(self, name: str, **settings: Any) -> Repository:
        self.repositories[name] = Repository(name, **settings)
        return self.repositories[name]

    def require_known(self, token: str | None) -> str:
        if token is None:
            raise Refusal(401, "Invalid username or password.")
        if token not in self.owners:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return token

    def require_writer(self, name: str, token: str | None) -> None:
        if name.split("/")[0] not in self.owners[self.require_known(token)]:
            raise Refusal(403, f"You don't have the rights to write to {name}")

    def readable(self, name: str, token: str | None) -> Repository:
        """A repository that the token may see; a private one is not there for others."""
        if token is not None:
            self.require_known(token)
        found = self.repositories.get(name)
        if found is None or (found.private and not self.is_let_in(found, token)):
            raise Refusal(401 if token is None else 404, "Repository not found", "RepoNotFound")
        return found

    def require_access(self, repository: Repository, token: str | None) -> None:
        """The files of a gated repository are for those who were let in."""
        if repository.gated and not self.is_let_in(repository, token):
            message = f"Access to model {repository.name} is restricted"
            raise Refusal(401 if token is None else 403, message, "GatedRepo")

    def is_let_in(self, repository: Repository, token: str | None) -> bool:
        owned = self.owners.get(token or "", set())
        return token in repository.readers or repository.name.split("/")[0] in owned


def is_large(path: str) -> bool:
    return path.endswith(LARGE_SUFFIXES)


def git_hash(content: bytes, *, kind: str = "blob") -> str:
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).hexdigest()
