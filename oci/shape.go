package oci

// JSONShape returns how many values a JSON document has at most, and how deep objects and
// arrays lie in one another. It counts what separates, opens and closes them, and allocates
// nothing: it is for who decides whether a document is fit to be decoded.
func JSONShape(b []byte) (values, deepest int) {
	depth, quoted := 0, false
	values = 1
	for i := 0; i < len(b); i++ {
		c := b[i]
		if quoted {
			switch c {
			case '\\':
				i++
			case '"':
				quoted = false
			}
			continue
		}
		switch c {
		case '"':
			quoted = true
		case ',':
			values++
		case '[', '{':
			values++
			depth++
			deepest = max(deepest, depth)
		case ']', '}':
			depth--
		}
	}
	return values, deepest
}
