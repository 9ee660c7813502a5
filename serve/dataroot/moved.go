package dataroot

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"example.org/slipway/internal/durable"
	"example.org/slipway/registry"
)

// movedMarker is a file in a data root which says that the catalogue there was moved
// elsewhere.
const movedMarker = registry.CatalogFile + ".moved"

// MarkMoved keeps servers from writing to the old catalogue by mistake, for example after
// a restart with the old configuration. Such changes would be missing in the new
// catalogue.
func (r *Root) MarkMoved() error {
	err := durable.WriteFile(filepath.Join(r.Dir, movedMarker), []byte(time.Now().UTC().Format(time.RFC3339)+"\n"))
	if err != nil {
		return fmt.Errorf("the catalogue is moved, but the old one could not be marked; start no server with it: %w", err)
	}
	return nil
}

// checkMoved returns an error if the catalogue was moved elsewhere.
func checkMoved(dir string) error {
	path := filepath.Join(dir, movedMarker)
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	return fmt.Errorf("the catalogue in %s was moved to PostgreSQL: set storage.catalog.postgres, or remove %s to go back to what it was at the move", dir, path)
}
