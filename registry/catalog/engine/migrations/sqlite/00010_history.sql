-- What tags pointed at, and manifests that can be brought back.

-- +goose Up
-- One row for each change of a tag. The rows of a repository end with it.
CREATE TABLE tag_history (
    id      INTEGER PRIMARY KEY,
    repo_id BIGINT NOT NULL,
    tag     TEXT    NOT NULL,
    -- what the tag points at since then; '' if it was deleted
    digest  TEXT    NOT NULL,
    -- what changed it, '' if that is not known, and for whom, '' for nobody that logged in
    cause   TEXT    NOT NULL,
    actor   TEXT    NOT NULL,
    at      BIGINT NOT NULL
);
CREATE INDEX tag_history_by_tag ON tag_history (repo_id, tag, id);
CREATE INDEX tag_history_gone ON tag_history (at) WHERE digest = '';

-- A manifest that was removed from a repository, until the collector takes its content.
CREATE TABLE trash (
    id         INTEGER PRIMARY KEY,
    repo_id    BIGINT NOT NULL,
    digest     TEXT    NOT NULL,
    media_type TEXT    NOT NULL,
    -- the tags that pointed at it, as a JSON list
    tags       TEXT    NOT NULL,
    cause      TEXT    NOT NULL,
    actor      TEXT    NOT NULL,
    deleted_at BIGINT NOT NULL,
    -- the collector takes nothing of it before
    until      BIGINT NOT NULL,
    UNIQUE (repo_id, digest)
);

-- +goose Down
DROP TABLE trash;
DROP TABLE tag_history;
