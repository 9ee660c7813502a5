package wire

import "bufio"

// ReadAnswer reads an answer as Client.Do does.
func ReadAnswer(r *bufio.Reader, method string, to func([]byte) error) (Answer, error) {
	var h head
	a, err := h.read(r)
	if err != nil {
		return a, err
	}
	return a, h.body(r, method, &a, to)
}
