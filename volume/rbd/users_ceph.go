//go:build ceph

package rbd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.org/slipway/oci/volref"
)

const (
	// usersObject holds, in its omap, the created users and when they expire. It lies
	// beside the volumes, where nodes may read and not write.
	usersObject = "slipway_users"
	// userPrefix begins the names of all users that the driver makes.
	userPrefix = "slipway-"
	mostUsers  = 10_000 // read at a time
)

// Credential implements Issuer.
func (s *Store) Credential(ctx context.Context, ttl time.Duration) (volref.Credential, error) {
	return s.credential(ctx, ttl, s.o.Clones)
}

// ReadCredential implements Issuer.
func (s *Store) ReadCredential(ctx context.Context, ttl time.Duration) (volref.Credential, error) {
	return s.credential(ctx, ttl, "")
}

func (s *Store) credential(ctx context.Context, ttl time.Duration, clones string) (volref.Credential, error) {
	c, err := run(ctx, s, 2*s.o.Timeout, func() (volref.Credential, error) { return s.makeUser(ttl, clones) }, nil)
	if err != nil {
		return volref.Credential{}, fmt.Errorf("make a user of Ceph: %w", err)
	}
	return c, nil
}

func (s *Store) makeUser(ttl time.Duration, clones string) (volref.Credential, error) {
	if ttl <= 0 {
		return volref.Credential{}, fmt.Errorf("a time of %s", ttl)
	}
	monitors, err := s.monitors()
	if err != nil {
		return volref.Credential{}, err
	}
	c := volref.Credential{
		User: userPrefix + strings.ToLower(rand.Text()), Monitors: monitors, Clones: clones,
		Expires: time.Now().Add(ttl).UTC().Truncate(time.Second),
	}
	// The note comes first, so that no unknown user is left.
	err = s.volumes.SetOmap(usersObject, map[string][]byte{c.User: []byte(c.Expires.Format(time.RFC3339))})
	if err != nil {
		return volref.Credential{}, translate(err)
	}
	mon, osd := s.caps(clones)
	var made []struct {
		Key string `json:"key"`
	}
	err = s.command(&made, map[string]any{"prefix": "auth get-or-create", "entity": "client." + c.User, "caps": []string{"mon", mon, "osd", osd}})
	if err == nil && (len(made) != 1 || made[0].Key == "") {
		err = errors.New("the monitor answered without a key")
	}
	if err != nil {
		return volref.Credential{}, err
	}
	c.Key = made[0].Key
	return c, nil
}

// caps returns what a node's user may do: read volumes, hold leases on them, and have its
// own images in the namespace clones if that is not "".
func (s *Store) caps(clones string) (mon, osd string) {
	mon = "profile rbd-read-only"
	osd = fmt.Sprintf("profile rbd-read-only pool=%s namespace=%s, allow rwx pool=%s namespace=%s",
		s.o.Pool, s.o.Namespace, s.o.Pool, LeaseNamespace(s.o.Namespace))
	if clones != "" {
		mon = "profile rbd"
		osd += fmt.Sprintf(", profile rbd pool=%s namespace=%s", s.o.Pool, clones)
	}
	return mon, osd
}

// command sends a command to the monitors and decodes the answer, unless into is nil.
func (s *Store) command(into any, args map[string]any) error {
	args["format"] = "json"
	b, err := json.Marshal(args)
	if err != nil {
		return err
	}
	out, status, err := s.conn.MonCommand(b)
	if err != nil {
		return fmt.Errorf("ceph %s: %w: %s", args["prefix"], translate(err), status)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("ceph %s: %w", args["prefix"], err)
	}
	return nil
}

// monitors returns the monitors' addresses in the form that clients take.
func (s *Store) monitors() (string, error) {
	type address struct {
		Type string `json:"type"`
		Addr string `json:"addr"`
	}
	var dump struct {
		Mons []struct {
			Public struct {
				Addrs []address `json:"addrvec"`
			} `json:"public_addrs"`
		} `json:"mons"`
	}
	if err := s.command(&dump, map[string]any{"prefix": "mon dump"}); err != nil {
		return "", err
	}
	var all []string
	for _, m := range dump.Mons {
		var one []string
		for _, a := range m.Public.Addrs {
			one = append(one, a.Type+":"+a.Addr+"/0")
		}
		all = append(all, "["+strings.Join(one, ",")+"]")
	}
	return strings.Join(all, ","), nil
}

// Expire implements Issuer.
func (s *Store) Expire(ctx context.Context) (int, error) {
	n, err := run(ctx, s, removals*s.o.Timeout, s.expire, nil)
	if err != nil {
		return n, fmt.Errorf("remove users of Ceph whose time is over: %w", err)
	}
	return n, nil
}

func (s *Store) expire() (int, error) {
	users, err := s.volumes.GetAllOmapValues(usersObject, "", userPrefix, mostUsers)
	if isMissing(err) {
		return 0, nil
	}
	if err != nil {
		return 0, translate(err)
	}
	gone := 0
	for user, until := range users {
		end, err := time.Parse(time.RFC3339, string(until))
		if err == nil && time.Now().Before(end) {
			continue
		}
		// "auth del" of a user that is not there succeeds.
		if err := s.command(nil, map[string]any{"prefix": "auth del", "entity": "client." + user}); err != nil {
			return gone, err
		}
		if err := s.volumes.RmOmapKeys(usersObject, []string{user}); err != nil {
			return gone, translate(err)
		}
		gone++
	}
	return gone, nil
}
