-- The catalogue: what exists and who may see it through which repository.
-- Times are Unix milliseconds. docs/architecture.md explains the model.

-- +goose Up
CREATE TABLE repositories (
    id         INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL UNIQUE,
    created_at BIGINT  NOT NULL
);

-- One row per distinct content, blob or manifest, whichever repositories show it.
CREATE TABLE blobs (
    id         INTEGER PRIMARY KEY,
    digest     TEXT    NOT NULL UNIQUE,
    size       BIGINT  NOT NULL,
    -- 0 named by a manifest but not here, 1 here, 2 being deleted from the object store
    state      INTEGER NOT NULL,
    -- small contents and manifests; NULL: an object in the store
    content    BLOB,
    created_at BIGINT  NOT NULL
);
CREATE INDEX blobs_unsettled ON blobs (state) WHERE state = 2;

-- A blob is visible in a repository.
CREATE TABLE links (
    repo_id    BIGINT NOT NULL,
    blob_id    BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (repo_id, blob_id)
) WITHOUT ROWID;
CREATE INDEX links_blob ON links (blob_id);

CREATE TABLE manifests (
    id            INTEGER PRIMARY KEY,
    repo_id       BIGINT NOT NULL,
    blob_id       BIGINT NOT NULL,
    media_type    TEXT   NOT NULL,
    artifact_type TEXT   NOT NULL,
    -- digest of the subject, NULL without one; the subject need not be here
    subject       TEXT,
    -- JSON object, NULL without any
    annotations   TEXT,
    created_at    BIGINT NOT NULL,
    -- last pull, written in batches; 0 never
    pulled_at     BIGINT NOT NULL,
    UNIQUE (repo_id, blob_id)
);
CREATE INDEX manifests_blob ON manifests (blob_id);
CREATE INDEX manifests_subject ON manifests (repo_id, subject, artifact_type) WHERE subject IS NOT NULL;

-- A manifest of a repository names a blob or another manifest.
CREATE TABLE refs (
    repo_id     BIGINT NOT NULL,
    blob_id     BIGINT NOT NULL,
    manifest_id BIGINT NOT NULL,
    PRIMARY KEY (repo_id, blob_id, manifest_id)
) WITHOUT ROWID;
CREATE INDEX refs_manifest ON refs (manifest_id);
CREATE INDEX refs_blob ON refs (blob_id);

CREATE TABLE tags (
    repo_id     BIGINT NOT NULL,
    name        TEXT   NOT NULL,
    manifest_id BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    pulled_at   BIGINT NOT NULL,
    PRIMARY KEY (repo_id, name)
) WITHOUT ROWID;
CREATE INDEX tags_manifest ON tags (manifest_id);

-- Uploads that outlive the request that opened them.
CREATE TABLE uploads (
    id         TEXT   PRIMARY KEY,
    repo       TEXT   NOT NULL,
    size       BIGINT NOT NULL,
    -- the object store's state; '' while the bytes are in content
    state      TEXT   NOT NULL,
    -- sha256 state over the first size bytes
    hash       BLOB,
    content    BLOB,
    -- what is about to be published, so that a crash between publishing the
    -- object and recording it leaves nothing unknown behind
    intent     TEXT   NOT NULL,
    updated_at BIGINT NOT NULL
) WITHOUT ROWID;
CREATE INDEX uploads_updated ON uploads (updated_at);
CREATE INDEX uploads_intent ON uploads (intent) WHERE intent <> '';

-- What may have become garbage: looked at when due, dropped when still needed.
-- kind 0: a blob of a repository, 1: a manifest of a repository.
CREATE TABLE gc_queue (
    kind    INTEGER NOT NULL,
    repo_id BIGINT  NOT NULL,
    blob_id BIGINT  NOT NULL,
    due_at  BIGINT  NOT NULL,
    PRIMARY KEY (kind, repo_id, blob_id)
) WITHOUT ROWID;
CREATE INDEX gc_due ON gc_queue (due_at);

-- Durable queues of small payloads, in order of id (notifications).
CREATE TABLE queue (
    id      INTEGER PRIMARY KEY,
    name    TEXT    NOT NULL,
    payload BLOB    NOT NULL
);
CREATE INDEX queue_name ON queue (name, id);

-- Facts about the data root as a whole.
CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- +goose Down
DROP TABLE settings;
DROP TABLE queue;
DROP TABLE gc_queue;
DROP TABLE uploads;
DROP TABLE tags;
DROP TABLE refs;
DROP TABLE manifests;
DROP TABLE links;
DROP TABLE blobs;
DROP TABLE repositories;
