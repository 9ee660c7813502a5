package registry

import (
	"context"
	"net/http"
	"time"

	"example.org/slipway/integration/bench/rival"
	"example.org/slipway/integration/internal/wire"
)

// These are the names of the servers in the results.
const (
	nameSlipway   = "slipway"
	nameAccessLog = "slipway, access log on"
	nameNginx     = "nginx"
	nameZot       = "zot"
	nameZotCommit = "zot, commit: true"
	nameDist3     = "Distribution 3"
	nameDist2     = "Distribution 2.8"
)

// variant is another build of Slipway to measure beside the first.
type variant struct{ name, binary string }

// specs returns all servers: the servers that are compared, whether installed or not, and
// the variants, which are other builds of Slipway.
func specs(binary string, variants []variant) []*rival.Spec {
	list := []*rival.Spec{rival.Slipway(nameSlipway, binary, true)}
	for _, v := range variants {
		list = append(list, rival.Slipway(v.name, v.binary, true))
	}
	return append(list, rival.Slipway(nameAccessLog, binary, false), rival.Nginx(nameNginx),
		rival.Zot(nameZot, false), rival.Zot(nameZotCommit, true), rival.Distribution3(nameDist3), rival.Distribution2(nameDist2))
}

// server is a running server and its clients.
type server struct {
	*rival.Server
	// http pulls and push pushes.
	http *http.Client
	push *wire.Client
}

// startServer starts a server on a directory, which may be new or used, and returns when it is
// ready.
func startServer(ctx context.Context, sp *rival.Spec, dir string) (*server, error) {
	running, err := rival.Start(ctx, sp, dir)
	if err != nil {
		return nil, err
	}
	return &server{
		Server: running,
		http: &http.Client{
			Timeout: 2 * time.Minute,
			Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true,
				ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10},
		},
		push: wire.New(running.Addr),
	}, nil
}

// stop stops the server. Its directory stays.
func (s *server) stop() {
	s.http.CloseIdleConnections()
	s.push.Close()
	s.Stop()
}
