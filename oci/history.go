package oci

import "time"

// Causes of the changes of a repository.
const (
	CausePush       = "push"
	CauseDelete     = "delete"
	CauseRetention  = "retention"  // a rule of the registry
	CauseCollection = "collection" // nothing needed it any more
	CauseMirror     = "mirror"     // the upstream registry changed it, or space was needed
	CauseRestore    = "restore"    // somebody took a change back
	CauseRepair     = "repair"
)

// States of a manifest that a tag pointed at.
const (
	StateHere    = "here"
	StateDeleted = "deleted" // it can be restored
	StateGone    = "gone"
)

// TagChange is a change of a tag.
type TagChange struct {
	// Digest is what the tag points at after the change. It is empty if the tag was
	// deleted.
	Digest Digest    `json:"digest,omitempty"`
	At     time.Time `json:"at"`
	// Cause is one of the constants, or empty if it is not known. By is the user who made
	// the change, or empty.
	Cause string `json:"cause,omitempty"`
	By    string `json:"by,omitempty"`
	// State says where the manifest is now. It is empty if the tag was deleted.
	State string `json:"state,omitempty"`
}

// DeletedManifest is a manifest that was removed from a repository and can still be
// restored.
type DeletedManifest struct {
	Digest    Digest `json:"digest"`
	MediaType string `json:"media_type"`
	// Size is the size of the manifest itself, in bytes.
	Size int64 `json:"size"`
	// Tags pointed at it.
	Tags []string `json:"tags,omitempty"`
	// At, Cause and By are as in TagChange.
	At    time.Time `json:"at"`
	Cause string    `json:"cause,omitempty"`
	By    string    `json:"by,omitempty"`
	// Until is when the registry may remove the content for good.
	Until time.Time `json:"until"`
}
