package fsstore

// WalkPaths makes a store work without openat2, as on old kernels.
func WalkPaths(s *Store) { s.paths.walk = true }

// Directories returns how many directories a store has in its table.
func Directories(s *Store) int {
	s.dirs.mu.Lock()
	defer s.dirs.mu.Unlock()
	return len(s.dirs.m)
}
