-- Layers that are rebuilt from their files, by recipes.

-- +goose Up
CREATE TABLE gear_recipes (
    layer_id    BIGINT PRIMARY KEY,
    digest      TEXT   NOT NULL UNIQUE,
    -- the content that is the recipe; empty in state 0
    recipe_name BLOB   NOT NULL,
    -- bytes of the layer and of the recipe
    size        BIGINT NOT NULL,
    recipe_size BIGINT NOT NULL,
    -- 0 the layer stays as it is, 1 the recipe is stored, 2 it has rebuilt the layer from what is
    -- stored, 3 it stands for the layer, and the object is to be deleted, 4 the object is deleted
    state       INTEGER NOT NULL,
    -- in state 2: when the layer is to be rebuilt once more
    due_at      BIGINT NOT NULL,
    -- bytes of the layer that one processor rebuilt in a second
    rate        BIGINT NOT NULL,
    -- in state 0: why
    reason      TEXT   NOT NULL,
    changed_at  BIGINT NOT NULL
) WITHOUT ROWID;
CREATE INDEX gear_recipes_due ON gear_recipes (state, due_at);

-- +goose Down
DROP TABLE gear_recipes;
