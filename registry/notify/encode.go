package notify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.org/slipway/oci"
)

// Media types of the formats.
const (
	// MediaTypeDocker is the media type that Distribution's receivers expect.
	MediaTypeDocker = "application/vnd.docker.distribution.events.v2+json"
	// MediaTypeCloudEvents is the media type of CloudEvents' structured content mode.
	MediaTypeCloudEvents = "application/cloudevents+json"
)

// SignatureHeader carries the signature of a body; see [Endpoint.Secret].
const SignatureHeader = "X-Slipway-Signature"

// Sign returns the value of SignatureHeader for a body. A receiver must compare it in
// constant time.
func Sign(secret string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// marshal returns the form in which events are queued. It is neither of the formats on
// the wire, so that the format of an endpoint may be changed while events wait for the
// endpoint.
func (e Event) marshal() ([]byte, error) { return json.Marshal(e) }

// unmarshalEvent reads a queued event.
func unmarshalEvent(b []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(b, &e); err != nil {
		return Event{}, fmt.Errorf("queued event: %w", err)
	}
	if e.ID == "" || e.Action == "" {
		return Event{}, errors.New("queued event: it has no id or action")
	}
	return e, nil
}

// dockerEnvelope is the envelope of Distribution's notifications, with the same fields.
type dockerEnvelope struct {
	Events []dockerEvent `json:"events"`
}

type dockerEvent struct {
	ID        string        `json:"id"`
	Timestamp time.Time     `json:"timestamp"`
	Action    string        `json:"action"`
	Target    dockerTarget  `json:"target"`
	Request   dockerRequest `json:"request"`
	Actor     dockerActor   `json:"actor"`
	Source    dockerSource  `json:"source"`
}

type dockerTarget struct {
	MediaType string     `json:"mediaType,omitempty"`
	Size      int64      `json:"size,omitempty"`
	Digest    oci.Digest `json:"digest,omitempty"`
	// Length is Size again, for receivers of the first version.
	Length         int64            `json:"length,omitempty"`
	Repository     string           `json:"repository,omitempty"`
	FromRepository string           `json:"fromRepository,omitempty"`
	URL            string           `json:"url,omitempty"`
	Tag            string           `json:"tag,omitempty"`
	References     []oci.Descriptor `json:"references,omitempty"`
}

type dockerRequest struct {
	ID        string `json:"id"`
	Addr      string `json:"addr,omitempty"`
	Host      string `json:"host,omitempty"`
	Method    string `json:"method"`
	UserAgent string `json:"useragent"`
}

type dockerActor struct {
	Name string `json:"name,omitempty"`
}

type dockerSource struct {
	Addr       string `json:"addr,omitempty"`
	InstanceID string `json:"instanceID,omitempty"`
}

// encode returns an event in a format, and its Content-Type.
func (n *Notifier) encode(e Event, f Format) (body []byte, contentType string, err error) {
	if f == FormatCloudEvents {
		body, err = json.Marshal(n.cloudEvent(e))
		return body, MediaTypeCloudEvents, err
	}
	body, err = json.Marshal(dockerEnvelope{Events: []dockerEvent{n.dockerEvent(e)}})
	return body, MediaTypeDocker, err
}

func (n *Notifier) dockerEvent(e Event) dockerEvent {
	d := dockerEvent{
		ID:        e.ID,
		Timestamp: e.Time,
		Action:    string(e.Action),
		Target: dockerTarget{
			MediaType: e.MediaType, Size: e.Size, Digest: e.Digest, Length: e.Size,
			Repository: e.Repo, FromRepository: e.FromRepo, URL: n.link(e), Tag: e.Tag, References: e.References,
		},
		Request: requestOf(e.Actor),
		Source:  dockerSource{Addr: n.o.Addr, InstanceID: n.o.InstanceID},
	}
	if e.Action == ActionTag {
		d.Action = string(ActionPush)
	}
	if e.Actor != nil {
		d.Actor.Name = e.Actor.Name
	}
	return d
}

func requestOf(a *oci.Actor) dockerRequest {
	if a == nil {
		return dockerRequest{}
	}
	return dockerRequest{ID: a.RequestID, Addr: a.Addr, Host: a.Host, Method: a.Method, UserAgent: a.UserAgent}
}

// link returns the URL of the event's target. It returns "" if the URL is unknown or the
// target is gone.
func (n *Notifier) link(e Event) string {
	if n.o.ExternalURL == "" || e.Digest == "" || e.Action == ActionDelete {
		return ""
	}
	r := oci.Request{Kind: oci.KindManifest, Repo: e.Repo, Ref: string(e.Digest)}
	if e.Blob {
		r.Kind = oci.KindBlob
	}
	return strings.TrimRight(n.o.ExternalURL, "/") + r.Path()
}

// cloudEvent is a CloudEvents 1.0 event.
type cloudEvent struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Subject         string    `json:"subject"`
	Time            time.Time `json:"time"`
	DataContentType string    `json:"datacontenttype"`
	Data            cloudData `json:"data"`
}

type cloudData struct {
	Action         Action           `json:"action"`
	Repository     string           `json:"repository"`
	FromRepository string           `json:"fromRepository,omitempty"`
	Tag            string           `json:"tag,omitempty"`
	Digest         oci.Digest       `json:"digest,omitempty"`
	MediaType      string           `json:"mediaType,omitempty"`
	Size           int64            `json:"size,omitempty"`
	URL            string           `json:"url,omitempty"`
	References     []oci.Descriptor `json:"references,omitempty"`
	Actor          *dockerActor     `json:"actor,omitempty"`
	Request        *dockerRequest   `json:"request,omitempty"`
}

func (n *Notifier) cloudEvent(e Event) cloudEvent {
	c := cloudEvent{
		SpecVersion: "1.0", ID: e.ID, Source: n.source(), Type: eventType(e), Subject: subject(e), Time: e.Time,
		DataContentType: "application/json",
		Data: cloudData{
			Action: e.Action, Repository: e.Repo, FromRepository: e.FromRepo, Tag: e.Tag, Digest: e.Digest,
			MediaType: e.MediaType, Size: e.Size, URL: n.link(e), References: e.References,
		},
	}
	if e.Actor != nil {
		r := requestOf(e.Actor)
		c.Data.Actor, c.Data.Request = &dockerActor{Name: e.Actor.Name}, &r
	}
	return c
}

// source returns a URI that identifies the registry of the event.
func (n *Notifier) source() string {
	switch {
	case n.o.ExternalURL != "":
		return n.o.ExternalURL
	case n.o.Addr != "":
		return "//" + n.o.Addr
	}
	return "urn:slipway:registry"
}

// eventType returns "dev.slipway.<image, blob or tag>.<action>".
func eventType(e Event) string {
	object := "image"
	switch {
	case e.Blob:
		object = "blob"
	case e.Action == ActionDelete && e.Digest == "" && e.Tag != "":
		object = "tag"
	}
	return "dev.slipway." + object + "." + string(e.Action)
}

func subject(e Event) string {
	s := e.Repo
	if e.Tag != "" {
		s += ":" + e.Tag
	}
	if e.Digest != "" {
		s += "@" + string(e.Digest)
	}
	return s
}
