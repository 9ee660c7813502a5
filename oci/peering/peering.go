// Package peering is what nodes and registries say to each other so that nodes can get
// files from other nodes. A node announces to the registry of an image that it uses the
// image. The registry answers with other nodes that use it, and with a [Grant].
//
// A grant says that its holder may read the files of a repository until a time. It names
// the holder's key, so it is of no use to anybody else. A node gives files to a holder only
// from images that it pulled from this repository itself.
package peering

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Announcement is what a node says to the registry about an image of a repository.
type Announcement struct {
	// Manifest is the digest of the image's manifest.
	Manifest string `json:"manifest"`
	// Key is the SHA-256 of the node's public key, in hex. It identifies the node.
	Key string `json:"key"`
	// Address is where other nodes reach this one. If it has no IP address, only a port
	// after a colon, the registry adds the address that the node has for the registry.
	Address string `json:"address"`
	// Zone and Rack say where the node is. Nodes of the same rack come first, then those
	// of the same zone.
	Zone string `json:"zone,omitempty"`
	Rack string `json:"rack,omitempty"`
	// Complete says that the node has all files of the image.
	Complete bool `json:"complete,omitempty"`
	// Leaving says that the node does not serve the image any more.
	Leaving bool `json:"leaving,omitempty"`
	// Public is the node's Ed25519 key in its PKIX form, and Proof the signature with it of
	// all that is above. Other nodes know Key, and without the proof each of them could
	// announce it at an address of its own, or as leaving.
	Public []byte `json:"public"`
	Proof  []byte `json:"proof"`
}

// proofDomain keeps signatures of announcements apart from other signatures with the same
// key.
const proofDomain = "slipway peer announcement v1\x00"

// maxPublic bounds the PKIX form of a key in bytes. That of Ed25519 takes 44.
const maxPublic = 64

// Sign sets Key, Public and Proof.
func (a *Announcement) Sign(key ed25519.PrivateKey) error {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	a.Key, a.Public = Key(sha256.Sum256(public)).String(), public
	a.Proof = ed25519.Sign(key, a.statement())
	return nil
}

// statement returns what Proof signs. Texts have no line breaks, says Check.
func (a *Announcement) statement() []byte {
	return fmt.Appendf(nil, "%s%s\n%s\n%s\n%s\n%s\n%t\n%t", proofDomain, a.Manifest, a.Key, a.Address, a.Zone, a.Rack, a.Complete, a.Leaving)
}

// proved reports whether Proof is right.
func (a *Announcement) proved(key Key) bool {
	if len(a.Public) > maxPublic || sha256.Sum256(a.Public) != key {
		return false
	}
	parsed, err := x509.ParsePKIXPublicKey(a.Public)
	public, ok := parsed.(ed25519.PublicKey)
	return err == nil && ok && ed25519.Verify(public, a.statement(), a.Proof)
}

// maxText bounds each text of an announcement in bytes.
const maxText = 256

// Check returns an error for an announcement that no node would send.
func (a *Announcement) Check() error {
	for _, s := range []string{a.Manifest, a.Key, a.Address, a.Zone, a.Rack} {
		if len(s) > maxText || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			return fmt.Errorf("%.40q... is too long or no text", s)
		}
	}
	if a.Manifest == "" {
		return errors.New("an announcement names the manifest of its image")
	}
	key, err := ParseKey(a.Key)
	if err != nil {
		return err
	}
	if _, err := a.at(netip.IPv6Unspecified()); err != nil {
		return err
	}
	if !a.proved(key) {
		return errors.New("the announcement is not signed with the node's key")
	}
	return nil
}

// At returns the node's address. seen is the address that the registry sees.
func (a *Announcement) At(seen netip.Addr) (netip.AddrPort, error) {
	at, err := a.at(seen)
	if err != nil {
		return at, err
	}
	ip := at.Addr()
	if ip.IsUnspecified() || ip.IsMulticast() || (ip.IsLoopback() && !seen.IsLoopback()) || (ip.IsLinkLocalUnicast() && ip != seen) {
		return at, fmt.Errorf("nobody else reaches a node at %s", at)
	}
	return at, nil
}

func (a *Announcement) at(seen netip.Addr) (netip.AddrPort, error) {
	text := a.Address
	if strings.HasPrefix(text, ":") {
		text = "[" + seen.Unmap().WithZone("").String() + "]" + text
		if seen.Unmap().Is4() {
			text = seen.Unmap().String() + a.Address
		}
	}
	at, err := netip.ParseAddrPort(text)
	if err != nil || at.Port() == 0 || at.Addr().Zone() != "" {
		return at, fmt.Errorf("%.60q is no address of a node: an IP address and a port are needed, or a port alone as in :7946", a.Address)
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
}

// Key is the SHA-256 of a node's public key, in its PKIX form.
type Key [32]byte

// String returns the key in hex.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey is the inverse of Key.String.
func ParseKey(s string) (k Key, err error) {
	if len(s) != 2*len(k) || strings.ToLower(s) != s {
		return k, fmt.Errorf("%.80q is no SHA-256 of a key", s)
	}
	if _, err := hex.Decode(k[:], []byte(s)); err != nil {
		return k, fmt.Errorf("%.80q is no SHA-256 of a key", s)
	}
	return k, nil
}

// Answer is what a registry answers to an announcement.
type Answer struct {
	// Time is the registry's time, by which grants end.
	Time time.Time `json:"time"`
	// Grant lets the node read files of the repository from other nodes, and Ends is when it
	// ends. Signer is the public key with which a node checks the grants of others.
	Grant  string            `json:"grant"`
	Ends   time.Time         `json:"ends"`
	Signer ed25519.PublicKey `json:"signer"`
	// Again is in how many milliseconds the node should announce the image again.
	Again int64 `json:"again_ms"`
	// Since is when the node began to use the image, see Peer.
	Since int64 `json:"since,omitempty"`
	// Peers are other nodes that use the image, in an order that is the same for all.
	Peers []Peer `json:"peers"`
}

// Peer is a node that uses an image.
type Peer struct {
	Key     string `json:"key"`
	Address string `json:"address"`
	// Complete says that the node has all files of the image.
	Complete bool `json:"complete,omitempty"`
	// Since is when the node began to use the image, by the registry's clock, in microseconds
	// since 1970. It is 0 for a node that is only one that has the image.
	Since int64 `json:"since,omitempty"`
	// Near is 2 for a node of the same rack, and 1 for one of the same zone.
	Near int `json:"near,omitempty"`
}

// Grant lets a node read the files of a repository from other nodes.
type Grant struct {
	Repo   string `json:"repository"`
	Holder Key    `json:"holder"`
	// Ends is in seconds since 1970, by the registry's clock.
	Ends int64 `json:"ends"`
}

// domain keeps signatures of grants apart from other signatures with the same key.
const domain = "slipway peer grant v1\x00"

// maxGrant is the length in bytes of the longest encoded grant.
const maxGrant = 2048

// Sign encodes and signs a grant.
func Sign(g *Grant, key ed25519.PrivateKey) (string, error) {
	body, err := json.Marshal(struct {
		Repo   string `json:"repository"`
		Holder string `json:"holder"`
		Ends   int64  `json:"ends"`
	}{g.Repo, g.Holder.String(), g.Ends})
	if err != nil {
		return "", err
	}
	sig := ed25519.Sign(key, append([]byte(domain), body...))
	e := base64.RawURLEncoding
	return e.EncodeToString(body) + "." + e.EncodeToString(sig), nil
}

// ErrGrant is returned, wrapped, for a text that is no valid grant of a signer.
var ErrGrant = errors.New("no valid grant")

// Verify decodes a grant and checks its signature. It does not check when the grant ends.
// Errors: ErrGrant.
func Verify(text string, signer ed25519.PublicKey) (*Grant, error) {
	first, second, ok := strings.Cut(text, ".")
	if !ok || len(text) > maxGrant || len(signer) != ed25519.PublicKeySize {
		return nil, ErrGrant
	}
	e := base64.RawURLEncoding.Strict()
	body, err := e.DecodeString(first)
	if err != nil {
		return nil, ErrGrant
	}
	sig, err := e.DecodeString(second)
	if err != nil || !ed25519.Verify(signer, append([]byte(domain), body...), sig) {
		return nil, ErrGrant
	}
	var g struct {
		Repo   string `json:"repository"`
		Holder string `json:"holder"`
		Ends   int64  `json:"ends"`
	}
	if err := json.Unmarshal(body, &g); err != nil {
		return nil, ErrGrant
	}
	holder, err := ParseKey(g.Holder)
	if err != nil || g.Repo == "" {
		return nil, ErrGrant
	}
	return &Grant{g.Repo, holder, g.Ends}, nil
}
