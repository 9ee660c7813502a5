-- The packs of which dropped layers consist: what checks found in them, and their parity.

-- +goose Up
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

-- +goose Down
DROP TABLE gear_parity_packs;
DROP TABLE gear_parity_files;
DROP TABLE gear_parity_groups;
DROP TABLE gear_pack_checks;
