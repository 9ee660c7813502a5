// Package mirror is the pull-through registry. It is an [oci.Registry] between the server
// and a stored registry. A repository whose name begins with the name of an upstream is a
// mirror of that upstream's repository: docker.io/library/nginx is library/nginx of the
// source docker.io. Requests for all other repositories go straight through to the store.
//
// A mirrored repository is an ordinary repository of the store. Like any other it is
// listed, collected, converted and guarded by access rules. Content that the store has is
// served from there, which costs one look-up in a table more than without a mirror. Other
// content is fetched once, given to everybody who waits for it while it comes in, and
// stored when its digest is right.
//
// # What it promises
//
// One fetch: a blob is downloaded once for all clients that want it, whatever part of it
// they want. A manifest is requested once. A download that breaks off is resumed at the
// byte it had reached, on another connection and also after a restart of the process.
//
// No wrong answer: the last 64 KiB of a blob are given out only when the digest of the
// whole blob is known to be right. A blob that is not larger is held back as a whole.
// Until then a reader has only a beginning, which cannot pass for the blob. If the digest
// is wrong, the reader's connection is cut and nothing is stored. A part of a blob that
// does not touch the last 64 KiB is given out as it comes. So a client that reads parts
// must check them, as it must whenever it puts a blob together from parts.
//
// The size of a blob of up to 64 KiB is given out only when the blob's digest is known to
// be right.
//
// No leak: content is visible in a mirrored repository only if the upstream has sent or
// confirmed it for that repository, even if the store has it for another one. If the
// upstream answers a request for a tag with 401, 403 or 404, the client gets the same
// answer, and never content that was fetched earlier. A request by digest is served from
// the repository's stored content without asking the upstream: that content cannot have
// changed, and the access rules here decide about the client. If a client chose the
// registry, its mere confirmation is not enough: it has to send the content, and shares
// no fill with other registries.
//
// No stall: no client waits for content to become durable, and a client that leaves does
// not end a download that others wait for.
//
// # Tags
//
// The upstream is asked again what a tag stands for after Source.TTL, and after a
// restart. One HEAD is sent for all clients that wait, and a GET if the HEAD gets an
// error. While the upstream fails, the tag is served as it was, until Source.StaleIfError
// after its last confirmation. A tag that is gone upstream is gone here. A tag that was
// moved to something the rules do not let in stays as it was. A tag that the upstream has
// refused is served again only when the upstream confirms it; a later failure of the
// upstream does not bring it back.
//
// # Lists
//
// A list of tags or referrers is the upstream's list, or an error, because the content
// here is only a part of it. If the upstream is offline, the list is of the content here,
// and Incomplete says so.
//
// # Rules
//
// Names, tags, platforms, ages and signatures are checked when a manifest is fetched, and
// not again: content that is here stays. An index is stored byte for byte as it is. Its
// manifests for platforms that are not wanted are answered as unknown.
//
// # When the disk is full
//
// If a blob cannot be written to Options.Dir, or would leave less than Options.KeepFree
// of the disk free, it goes to each reader straight from the upstream and is kept
// nowhere.
//
// # On disk
//
// Options.Dir has one file for each large blob that is being fetched,
// <algorithm>-<hex>.part, with the blob's bytes from the beginning. The store takes the
// file over when it is complete. A start removes files that nobody has asked for in seven
// days.
package mirror
