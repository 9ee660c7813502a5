package serve

import "net/http"

type adminServer struct{ stopped chan struct{} }

func newAdminServer(s *Server) (*adminServer, error) { return &adminServer{make(chan struct{})}, nil }
func (a *adminServer) serve() error                  { <-a.stopped; return http.ErrServerClosed }
func (a *adminServer) stop() {
	select {
	case <-a.stopped:
	default:
		close(a.stopped)
	}
}
