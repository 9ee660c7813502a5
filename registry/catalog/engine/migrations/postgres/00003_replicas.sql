-- What processes that share a catalogue agree by.

-- +goose Up
-- Who uses an upload now, and until when: 0 nobody, -1 nobody, and the object of
-- its intent may be gone.
ALTER TABLE uploads ADD COLUMN owner TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE uploads ADD COLUMN until BIGINT NOT NULL DEFAULT 0;

-- State 3: its object is being deleted right now by owner, who ends by deadline.
ALTER TABLE blobs ADD COLUMN owner TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE blobs ADD COLUMN deadline BIGINT NOT NULL DEFAULT 0;
CREATE INDEX blobs_deleting ON blobs (deadline) WHERE state = 3;

-- Who does a job that only one may do.
CREATE TABLE leases (
    name  TEXT COLLATE "C" PRIMARY KEY,
    owner TEXT COLLATE "C" NOT NULL,
    until BIGINT NOT NULL
);

-- The last batch of changes that each process committed.
CREATE TABLE writers (
    id         TEXT COLLATE "C" PRIMARY KEY,
    batch      BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

-- The oldest program that may use this schema, by the version it knows.
INSERT INTO settings (name, value) VALUES ('min_reader', '3');

-- +goose Down
DELETE FROM settings WHERE name = 'min_reader';
DROP TABLE writers;
DROP TABLE leases;
DROP INDEX blobs_deleting;
ALTER TABLE blobs DROP COLUMN deadline;
ALTER TABLE blobs DROP COLUMN owner;
ALTER TABLE uploads DROP COLUMN until;
ALTER TABLE uploads DROP COLUMN owner;
