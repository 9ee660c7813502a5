-- What is known of how far stored bytes can be trusted.

-- +goose Up
-- 1: a read of the content failed, or gave other bytes than its digest's. It counts as
-- missing to whoever pushes, until its bytes are stored or read again.
ALTER TABLE blobs ADD COLUMN suspect INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE blobs DROP COLUMN suspect;
