package web

import "net/http"

// home lists the repositories.
func (q *request) home() error {
	q.show(http.StatusOK, "home", "Repositories", nil)
	return nil
}
