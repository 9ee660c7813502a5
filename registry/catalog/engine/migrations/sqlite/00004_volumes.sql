-- Cider: which images are block volumes, and which volumes they need.

-- +goose Up
-- An image of a repository in one file system: what has to be built, and what was.
CREATE TABLE volume_images (
    id         INTEGER PRIMARY KEY,
    repo       TEXT    NOT NULL,
    -- digest of the image's manifest
    manifest   TEXT    NOT NULL,
    fs         TEXT    NOT NULL,
    -- 1: a client asked for it by itself
    asked      INTEGER NOT NULL,
    -- 1: a client wants it no more
    dropped    INTEGER NOT NULL,
    -- when it is to be built; 0: nothing is to be done
    due_at     BIGINT  NOT NULL,
    attempts   INTEGER NOT NULL,
    -- of the last attempt, '' before there was one and after a success
    failure    TEXT    NOT NULL,
    -- what was built, '' before; the catalogue does not know its meaning
    place      TEXT    NOT NULL,
    record     BLOB    NOT NULL,
    -- digest of the manifest that holds the record beside the image, or ''
    referrer   TEXT    NOT NULL,
    updated_at BIGINT  NOT NULL,
    UNIQUE (repo, manifest, fs)
);
CREATE INDEX volume_images_due ON volume_images (due_at, id) WHERE due_at > 0;

-- A volume of a place, from before it is made until after it is removed.
CREATE TABLE volumes (
    id       INTEGER PRIMARY KEY,
    place    TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    -- name of the volume of the same place that it is a clone of, or ''
    parent   TEXT    NOT NULL,
    -- 1 in use or kept, 2 being removed
    state    INTEGER NOT NULL,
    -- not to be removed before
    due_at   BIGINT  NOT NULL,
    UNIQUE (place, name)
);
CREATE INDEX volumes_parent ON volumes (place, parent);

-- An image needs a volume.
CREATE TABLE volume_uses (
    volume_id BIGINT NOT NULL,
    image_id  BIGINT NOT NULL,
    PRIMARY KEY (volume_id, image_id)
) WITHOUT ROWID;
CREATE INDEX volume_uses_image ON volume_uses (image_id);

-- +goose Down
DROP TABLE volume_uses;
DROP TABLE volumes;
DROP TABLE volume_images;
