package api

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAnswer(t *testing.T) {
	type in struct{ A int }
	h := answer(func(_ *http.Request, x in) (in, error) {
		switch x.A {
		case 1:
			return x, fs.ErrNotExist
		case 2:
			return x, errors.New("it does not work")
		}
		return x, nil
	})
	for body, want := range map[string]int{`{"A":0}`: 200, ``: 200, `{"A":1}`: 404, `{"A":2}`: 422, `{"A":"x"}`: 400, `{`: 400, strings.Repeat(" ", maxRequest+1): 400} {
		w := httptest.NewRecorder()
		h(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)))
		if w.Code != want {
			t.Errorf("%.20q: status %d, want %d", body, w.Code, want)
		}
	}
}
