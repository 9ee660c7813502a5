package directory

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	ber "github.com/go-asn1-ber/asn1-ber"
	"github.com/go-ldap/ldap/v3"
	"github.com/jimlambrt/gldap"

	"example.org/slipway/integration/internal/slipway"
)

// entry is an entry of a directory. Without a password nobody can bind as it.
type entry struct {
	dn, password string
	attributes   map[string][]string
}

// directory is an LDAP server. Like OpenLDAP and Active Directory it takes a bind without a
// password for an anonymous one, which succeeds.
type directory struct {
	addr, ca string // host:port, and the file of the authority
	entries  []entry
	searcher string // the DN that everybody must be bound as to search; empty: nobody needs to be

	t      testing.TB
	tls    *tls.Config
	ldaps  bool
	server *gldap.Server
	ended  chan error

	mu    sync.Mutex
	bound map[int]string // DNs by connection
	binds int
}

// newDirectory starts a directory of entries.
func newDirectory(t testing.TB, ldaps bool, entries ...entry) *directory {
	t.Helper()
	d := &directory{t: t, addr: slipway.FreeAddr(t), entries: entries, ldaps: ldaps, bound: map[int]string{}}
	d.certify()
	d.start()
	t.Cleanup(d.stop)
	return d
}

// certify makes a certificate for 127.0.0.1.
func (d *directory) certify() {
	d.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		d.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		d.t.Fatal(err)
	}
	d.tls = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	d.ca = filepath.Join(d.t.TempDir(), "ca.crt")
	if err := os.WriteFile(d.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// start starts the server, and returns when it takes connections.
func (d *directory) start() {
	d.t.Helper()
	mux, err := gldap.NewMux()
	for _, add := range []func() error{
		func() error { return err },
		func() error { return mux.Bind(d.bind) },
		func() error { return mux.Search(d.search) },
		func() error { return mux.ExtendedOperation(d.startTLS, gldap.ExtendedOperationStartTLS) },
	} {
		if err := add(); err != nil {
			d.t.Fatal(err)
		}
	}
	if d.server, err = gldap.NewServer(); err != nil {
		d.t.Fatal(err)
	}
	if err := d.server.Router(mux); err != nil {
		d.t.Fatal(err)
	}
	var opts []gldap.Option
	if d.ldaps {
		opts = append(opts, gldap.WithTLSConfig(d.tls))
	}
	server, ended := d.server, make(chan error, 1)
	d.ended = ended
	go func() { ended <- server.Run(d.addr, opts...) }()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("tcp", d.addr)
		if err == nil {
			c.Close()
			return
		}
		select {
		case err := <-ended:
			d.t.Fatalf("the directory ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			d.t.Fatal("the directory does not take connections")
		}
	}
}

// stop stops the server. It can be started again.
func (d *directory) stop() {
	if d.server == nil {
		return
	}
	if err := d.server.Stop(); err != nil {
		d.t.Error(err)
	}
	<-d.ended
	d.server = nil
}

// asked returns how often anybody has tried to bind.
func (d *directory) asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.binds
}

// sameDN reports whether two DNs are the same, or the first is above the second.
func sameDN(a, b string, above bool) bool {
	x, errX := ldap.ParseDN(a)
	y, errY := ldap.ParseDN(b)
	return errX == nil && errY == nil && (x.EqualFold(y) || above && x.AncestorOfFold(y))
}

func (d *directory) bind(w *gldap.ResponseWriter, r *gldap.Request) {
	resp := r.NewBindResponse(gldap.WithResponseCode(gldap.ResultInvalidCredentials))
	d.mu.Lock()
	d.binds++
	delete(d.bound, r.ConnectionID())
	m, err := r.GetSimpleBindMessage()
	switch {
	case err != nil:
		resp.SetResultCode(gldap.ResultProtocolError)
	case m.Password == "":
		resp.SetResultCode(gldap.ResultSuccess)
	default:
		for _, e := range d.entries {
			if e.password != "" && e.password == string(m.Password) && sameDN(e.dn, m.UserName, false) {
				d.bound[r.ConnectionID()] = e.dn
				resp.SetResultCode(gldap.ResultSuccess)
			}
		}
	}
	d.mu.Unlock()
	_ = w.Write(resp)
}

func (d *directory) search(w *gldap.ResponseWriter, r *gldap.Request) {
	done := r.NewSearchDoneResponse(gldap.WithResponseCode(gldap.ResultSuccess))
	defer func() { _ = w.Write(done) }()
	m, err := r.GetSearchMessage()
	if err != nil {
		done.SetResultCode(gldap.ResultProtocolError)
		return
	}
	filter, err := ldap.CompileFilter(m.Filter)
	if err != nil {
		done.SetResultCode(gldap.ResultProtocolError)
		return
	}
	d.mu.Lock()
	who := d.bound[r.ConnectionID()]
	d.mu.Unlock()
	if d.searcher != "" && who != d.searcher {
		done.SetResultCode(gldap.ResultInsufficientAccessRights)
		return
	}
	for _, e := range d.entries {
		if !sameDN(m.BaseDN, e.dn, m.Scope != gldap.BaseObject) || !matches(filter, e) {
			continue
		}
		found := r.NewSearchResponseEntry(e.dn)
		for _, name := range m.Attributes {
			if values := e.attributes[name]; len(values) > 0 {
				found.AddAttribute(name, values)
			}
		}
		if w.Write(found) != nil {
			return
		}
	}
}

func (d *directory) startTLS(w *gldap.ResponseWriter, r *gldap.Request) {
	resp := r.NewExtendedResponse(gldap.WithResponseCode(gldap.ResultSuccess))
	resp.SetResponseName(gldap.ExtendedOperationStartTLS)
	if w.Write(resp) == nil {
		_ = r.StartTLS(d.tls) // the client notices
	}
}

// matches reports whether an entry matches a filter of AND, OR, NOT, equality and presence.
func matches(f *ber.Packet, e entry) bool {
	some := func(want bool) bool {
		for _, c := range f.Children {
			if matches(c, e) == want {
				return true
			}
		}
		return false
	}
	text := func(p *ber.Packet) string { return p.Data.String() }
	switch f.Tag {
	case ldap.FilterAnd:
		return !some(false)
	case ldap.FilterOr:
		return some(true)
	case ldap.FilterNot:
		return !some(true)
	case ldap.FilterPresent:
		return len(e.attributes[text(f)]) > 0 || text(f) == "objectClass"
	case ldap.FilterEqualityMatch:
		for _, v := range e.attributes[text(f.Children[0])] {
			if strings.EqualFold(v, text(f.Children[1])) || strings.Contains(v, "=") && sameDN(v, text(f.Children[1]), false) {
				return true
			}
		}
	}
	return false
}
