-- Parity across packs, API tokens of robots, webhooks, orders to nodes, and what tags
-- pointed at.

-- +goose Up
-- The packs of which dropped layers consist: what checks found in them, and their parity.

CREATE TABLE gear_pack_checks (
    pack_id    INTEGER PRIMARY KEY,
    -- when the pack was last read whole; 0: not since it was found damaged
    checked_at BIGINT  NOT NULL,
    -- what is wrong with the pack; empty: nothing
    damage     TEXT    NOT NULL
);
CREATE INDEX gear_pack_checks_damaged ON gear_pack_checks (pack_id) WHERE damage <> '';

-- A group: packs, and the files from which, with the other packs, a lost one is made again.
-- The position of packs and files is their number in the code.
CREATE TABLE gear_parity_groups (
    id         INTEGER PRIMARY KEY,
    -- 1: one of its files is damaged
    broken     INTEGER NOT NULL,
    -- when its files were last read whole
    checked_at BIGINT  NOT NULL
);
CREATE TABLE gear_parity_files (
    group_id BIGINT  NOT NULL,
    pos      INTEGER NOT NULL,
    digest   BLOB    NOT NULL,
    size     BIGINT  NOT NULL,
    PRIMARY KEY (group_id, pos)
) WITHOUT ROWID;
CREATE INDEX gear_parity_files_by_digest ON gear_parity_files (digest);
CREATE TABLE gear_parity_packs (
    group_id BIGINT  NOT NULL,
    pos      INTEGER NOT NULL,
    pack_id  BIGINT  NOT NULL,
    PRIMARY KEY (group_id, pos)
) WITHOUT ROWID;
CREATE INDEX gear_parity_packs_by_pack ON gear_parity_packs (pack_id);

-- API tokens of robots.

-- One row a token that is not revoked. The token itself is nowhere: hash is its SHA-256.
-- A robot may have several tokens. The catalogue does not know the meaning of rights.
CREATE TABLE api_tokens (
    token_id   TEXT PRIMARY KEY,
    robot      TEXT NOT NULL,
    hash       BLOB NOT NULL,
    rights     TEXT NOT NULL,
    creator    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    -- 0: it does not expire
    expires_at BIGINT NOT NULL,
    -- last use, written in batches; 0 never
    used_at    BIGINT NOT NULL
) WITHOUT ROWID;
CREATE INDEX api_tokens_robot ON api_tokens (robot);

-- Webhooks that administrators manage while the registry runs.

CREATE TABLE webhooks (
    webhook_id TEXT PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    -- URL, secret and what it is told of, as JSON
    spec       TEXT NOT NULL,
    -- 1: nothing is sent
    paused     INTEGER NOT NULL,
    creator    TEXT NOT NULL,
    created_at BIGINT NOT NULL
) WITHOUT ROWID;

-- Orders that nodes have an image before they start it.

CREATE TABLE warm_orders (
    order_id   TEXT PRIMARY KEY,
    -- what was ordered, as JSON
    spec       TEXT NOT NULL,
    cancelled  INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
) WITHOUT ROWID;

-- How far a node is with an order; the node '' is the registry itself.
CREATE TABLE warm_progress (
    order_id TEXT NOT NULL,
    node     TEXT NOT NULL,
    -- as JSON
    state    TEXT NOT NULL,
    seen_at  BIGINT NOT NULL,
    PRIMARY KEY (order_id, node)
) WITHOUT ROWID;

-- What tags pointed at, and manifests that can be brought back.

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
DROP TABLE warm_progress;
DROP TABLE warm_orders;
DROP TABLE webhooks;
DROP TABLE api_tokens;
DROP TABLE gear_parity_packs;
DROP TABLE gear_parity_files;
DROP TABLE gear_parity_groups;
DROP TABLE gear_pack_checks;
