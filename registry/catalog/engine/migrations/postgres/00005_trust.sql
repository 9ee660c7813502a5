-- What is known of how far stored bytes can be trusted.

-- +goose Up
-- 1: a read of the content failed, or gave other bytes than its digest's. It counts as
-- missing to whoever pushes, until its bytes are stored or read again.
ALTER TABLE blobs ADD COLUMN suspect INTEGER NOT NULL DEFAULT 0;
-- What the object store called the object when it was stored (an ETag); '' if it is not known.
ALTER TABLE blobs ADD COLUMN tag TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE blobs DROP COLUMN tag;
ALTER TABLE blobs DROP COLUMN suspect;
