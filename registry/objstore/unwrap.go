package objstore

// Wrapper is a store that adds something to another one, such as a cache or retries.
type Wrapper interface {
	Store
	// Unwrap returns the store inside.
	Unwrap() Store
}

// Adapter is a [Wrapper] that takes part in an optional ability of the inner store. For
// example, a cache must learn when a [Mover] moves an object. It does not have the
// methods of the ability itself, because then it would seem to have the ability even if
// the inner store lacks it.
type Adapter interface {
	// Adapt gets a pointer to an interface, such as *Mover. If the inner store has that
	// ability and the wrapper takes part in it, Adapt sets the interface and returns
	// true.
	Adapt(target any) bool
}

// As returns an optional ability of a store, such as [Redirector], however often the
// store is wrapped. Wrappers that only pass everything on need nothing but Unwrap.
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
