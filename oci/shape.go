package oci

// JSONShape returns how many values a JSON document has at most, and how deep its objects
// and arrays are nested. It counts the separators and brackets, and allocates nothing.
// Callers use it to decide whether a document is safe to decode.
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
