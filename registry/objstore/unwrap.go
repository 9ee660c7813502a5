package objstore

// Wrapper is what a store is that adds something to another one, such as a cache or
// retries.
type Wrapper interface {
	Store
	// Unwrap returns the store inside.
	Unwrap() Store
}

// Adapter is for a [Wrapper] that must take part in an optional ability of the store
// inside, as a cache must know of a [Mover]'s moves. It does not have the ability's
// methods itself: it would seem to have them even where the store inside has not.
type Adapter interface {
	// Adapt is given a pointer to an interface, such as *Mover. If the store inside has
	// that ability and the wrapper has a part in it, Adapt sets what the pointer points
	// to and returns true.
	Adapt(target any) bool
}

// As finds an optional ability of a store, such as [Redirector], however often the store
// is wrapped. Wrappers that only pass everything on need nothing but Unwrap.
func As[T any](s Store) (ability T, ok bool) {
	for s != nil {
		if t, ok := s.(T); ok {
			return t, true
		}
		if a, ok := s.(Adapter); ok && a.Adapt(&ability) {
			return ability, true
		}
		w, ok := s.(Wrapper)
		if !ok {
			break
		}
		s = w.Unwrap()
	}
	var none T
	return none, false
}
