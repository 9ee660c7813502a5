-- Gear: which contents lie where in which pack, and which layer holds them.
-- Names and digests of packs are SHA-256, 32 bytes.

-- +goose Up
-- A pack is an object that holds many contents. The order of ids is the order
-- in which they were recorded.
CREATE TABLE gear_packs (
    id         INTEGER PRIMARY KEY,
    digest     BLOB    NOT NULL UNIQUE,
    -- of the object, in bytes
    size       BIGINT  NOT NULL,
    -- stored bytes of all contents it was written with
    bytes      BIGINT  NOT NULL,
    -- 0 as a conversion wrote it, 1 settled
    dense      INTEGER NOT NULL,
    -- 1 in use, 2 replaced and to be deleted when due, 3 its object is being deleted
    state      INTEGER NOT NULL,
    -- contents in it that something needs, and their stored bytes
    live_files BIGINT  NOT NULL,
    live_bytes BIGINT  NOT NULL,
    created_at BIGINT  NOT NULL,
    -- in use: to be left alone until then; replaced: to be deleted then
    due_at     BIGINT  NOT NULL
);
CREATE INDEX gear_packs_gone ON gear_packs (state, due_at) WHERE state <> 1;

CREATE TABLE gear_files (
    id       INTEGER PRIMARY KEY,
    name     BLOB    NOT NULL UNIQUE,
    size     BIGINT  NOT NULL,
    -- 0: its bytes were found damaged and wait for being made again
    pack_id  BIGINT  NOT NULL,
    off      BIGINT  NOT NULL,
    stored   BIGINT  NOT NULL,
    encoding INTEGER NOT NULL,
    -- 1 when a layer or a client needs it, 0 when its bytes are dead
    live     INTEGER NOT NULL
);
CREATE INDEX gear_files_pack ON gear_files (pack_id, off);

CREATE TABLE gear_layers (
    id         INTEGER PRIMARY KEY,
    -- NULL: its blob is gone, and its contents are still to be released
    digest     TEXT   UNIQUE,
    blob_id    BIGINT NOT NULL,
    -- the content that is its index
    index_name BLOB   NOT NULL,
    -- distinct contents, and their bytes before compression
    files      BIGINT NOT NULL,
    bytes      BIGINT NOT NULL,
    -- SHA-256 of the uncompressed layer
    diff_id    BLOB   NOT NULL,
    -- 1: the index was in the layer, and is good only where gear_grants says so
    embedded   INTEGER NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX gear_layers_blob ON gear_layers (blob_id);
CREATE INDEX gear_layers_gone ON gear_layers (id) WHERE digest IS NULL;

-- A layer holds a content.
CREATE TABLE gear_layer_files (
    file_id  BIGINT NOT NULL,
    layer_id BIGINT NOT NULL,
    PRIMARY KEY (file_id, layer_id)
) WITHOUT ROWID;
CREATE INDEX gear_layer_files_layer ON gear_layer_files (layer_id);

-- A repository may use the layer of a Gear image: it could read all its files
-- when that was pushed.
CREATE TABLE gear_grants (
    layer_id BIGINT NOT NULL,
    repo_id  BIGINT NOT NULL,
    PRIMARY KEY (layer_id, repo_id)
) WITHOUT ROWID;

-- A client uploaded a content into a repository before the index that holds it.
CREATE TABLE gear_staged (
    file_id    BIGINT NOT NULL,
    repo_id    BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (file_id, repo_id)
) WITHOUT ROWID;
CREATE INDEX gear_staged_expiry ON gear_staged (expires_at);
CREATE INDEX gear_staged_repo ON gear_staged (repo_id);

-- A writer is about to make a pack's object, so that one that a crash leaves
-- behind is known without a look at the store.
CREATE TABLE gear_intents (
    pack       BLOB   NOT NULL,
    writer     TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (pack, writer)
) WITHOUT ROWID;

-- Layers to be converted.
CREATE TABLE gear_jobs (
    id       INTEGER PRIMARY KEY,
    digest   TEXT    NOT NULL UNIQUE,
    due_at   BIGINT  NOT NULL,
    attempts INTEGER NOT NULL,
    -- of the last attempt, '' before there was one
    failure  TEXT    NOT NULL
);
CREATE INDEX gear_jobs_due ON gear_jobs (due_at, id);

-- Which files containers of an image open first. digest is that of its manifest;
-- the catalogue does not know the meaning of data.
CREATE TABLE gear_profiles (
    digest     TEXT   PRIMARY KEY,
    data       BLOB   NOT NULL,
    updated_at BIGINT NOT NULL
) WITHOUT ROWID;

-- +goose Down
DROP TABLE gear_profiles;
DROP TABLE gear_grants;
DROP TABLE gear_jobs;
DROP TABLE gear_intents;
DROP TABLE gear_staged;
DROP TABLE gear_layer_files;
DROP TABLE gear_layers;
DROP TABLE gear_files;
DROP TABLE gear_packs;
