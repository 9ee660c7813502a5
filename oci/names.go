package oci

// namesPage is how many names AllNames requests at a time.
const namesPage = 1000

// EachName calls the function do for each name of a list that comes in pages, like the
// lists of a [Lister], until do returns an error. The function list returns at most n
// names after the name last. If a page ends with the name last again, EachName takes the
// list for complete, because some registries ignore last.
func EachName(list func(last string, n int) (names []string, more bool, err error), do func(name string) error) error {
	for last := ""; ; {
		names, more, err := list(last, namesPage)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := do(name); err != nil {
				return err
			}
		}
		if !more || len(names) == 0 || names[len(names)-1] == last {
			return nil
		}
		last = names[len(names)-1]
	}
}

// AllNames returns the names of a list that comes in pages, as EachName does.
func AllNames(list func(last string, n int) (names []string, more bool, err error)) (all []string, err error) {
	err = EachName(list, func(name string) error {
		all = append(all, name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
