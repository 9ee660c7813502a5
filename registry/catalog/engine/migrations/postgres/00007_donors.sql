-- What is kept of images that were started, for the first starts of other versions.

-- +goose Up
-- One row an image of a repository whose containers opened files, also when the image is
-- gone: the rows of a repository end with it. Of images that are alike (kind) only the
-- last ones are kept. The catalogue does not know the meaning of data.
CREATE TABLE gear_donors (
    repo_id    BIGINT NOT NULL,
    digest     TEXT COLLATE "C" NOT NULL,
    kind       TEXT COLLATE "C" NOT NULL,
    data       BYTEA NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (repo_id, digest)
);
CREATE INDEX gear_donors_by_time ON gear_donors (updated_at);

-- +goose Down
DROP TABLE gear_donors;
