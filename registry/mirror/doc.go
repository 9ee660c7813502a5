// Package mirror is the pull-through registry: an [oci.Registry] between the
// server and a stored registry, whose repositories whose names begin with an
// upstream's name are mirrors of that upstream. docker.io/library/nginx is
// library/nginx of the source docker.io. All other repositories go straight
// through to the store.
//
// A mirrored repository is an ordinary repository of the store: it is listed,
// collected, converted and guarded by access rules as any other. What is in the
// store is served from there, at the cost of one look-up in a table more than
// without a mirror. What is not is fetched once, given to everybody who waits for
// it while it comes in, and stored when its digest is right.
//
// # What it promises
//
// One fetch: a blob is downloaded once for all who want it, whatever part of it
// they want; a manifest is asked for once. A download that breaks off goes on
// where it was, on another connection and after a restart of the process, too.
//
// No wrong answer: the last 64 KiB of a blob, and a smaller blob as a whole, are
// given out only when the digest of all of it is known to be right. Before that a
// reader has a beginning that cannot pass for the blob; if the digest is wrong its
// connection is cut, and nothing is stored. A part of a blob that does not touch
// these bytes is given out as it comes, so who reads parts checks them, as anybody
// must who puts a blob together from parts.
//
// The size of a blob of up to 64 KiB is told when its digest is known to be right.
//
// No leak: content is visible in a mirrored repository only if the upstream has
// given or confirmed it for that repository, also where the store has it for
// another one. What the upstream answers with 401, 403 or 404 is answered so, and
// never from what was fetched earlier, by tag. By digest the repository's stored
// content is served without asking: it cannot have changed, and clients are let in
// by the access rules here. The word of a registry that whoever asked chose confirms
// nothing: it has to send the content, and shares no fill with others.
//
// No stall: nobody waits for content to become durable, and no client's leaving
// ends what others wait for.
//
// # Tags
//
// What a tag stands for is asked again after Source.TTL, and after a restart; one
// HEAD for all who wait, and a GET where that gets an error. While the upstream fails the tag is served as it was, for
// Source.StaleIfError after it was last confirmed. A tag that is gone upstream is
// gone here. A tag that was moved to something the rules do not let in stays where
// it was. A tag that the upstream has refused is served again when it is confirmed,
// and not because the upstream fails later.
//
// # Lists
//
// Tags and referrers are what the upstream lists, or an error: what is here is a part of them.
// Where the upstream is offline it is what is here, which Incomplete says.
//
// # Rules
//
// Names, tags, platforms, ages and signatures are checked when a manifest is
// fetched, and not again: what is here stays. An index is stored byte for byte as
// it is; manifests of platforms that are not wanted are said to be unknown.
//
// # When the disk is full
//
// A blob that cannot be written to Options.Dir, or would leave less than Options.KeepFree
// of its disk, goes to each reader straight from the upstream and is kept nowhere.
//
// # On disk
//
// Options.Dir has one file for each large blob under way,
// <algorithm>-<hex>.part: its bytes from the beginning. The store takes it when it
// is whole. Files that nobody has asked for in seven days are removed at a start.
package mirror
