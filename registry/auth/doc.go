// Package auth answers two questions about a request to the registry: who is
// asking, and what may they do.
//
// # Terms
//
// A method proves who is asking: htpasswd (Basic), OIDC (Bearer, or as a Basic
// password), a verified client certificate, or a token: of the built-in token
// service or of an external one. Any number of methods work at once. An
// [Identity] is the outcome. A [Rule] grants actions on repositories to
// subjects; rules add up and nothing is ever subtracted. A challenge is the
// WWW-Authenticate value that tells a client how to try again.
//
// # Subjects
//
//	anonymous      everybody, with or without credentials
//	*              everybody who is authenticated, by any method
//	alice          an htpasswd user, or a client certificate of that name
//	oidc:corp:bob  the user bob of the OIDC issuer named corp
//	group:corp:dev members of dev by the groups claim of the issuer named corp
//	group:mtls:dev members of dev by the OU of their certificate
//	group:dev      members of dev, where only one issuer, or certificates, tell of groups
//
// With methods but no rules every authenticated client may do everything and
// anonymous clients nothing, as Distribution does. With neither, everything is
// allowed ([Auth.Open]) and the caller should listen on loopback only.
//
// A token of the built-in service is worth the intersection of its access
// claim and the rules, so narrower rules bite at once after a restart. A token
// of an external service is worth exactly its access claim. Either way what is
// granted to anonymous needs no token and is not lost by sending one.
//
// # What clients need of /v2/
//
// docker asks /v2/ once, without credentials, and uses the challenge it got
// there for everything that follows; a later 401 does not make it ask again.
// podman, skopeo and buildah do the same. So an open /v2/ would make "docker
// login" succeed without looking at the password and every push fail. Hence
// [Auth.PingAllowed]: 401 for a plain anonymous request as soon as passwords
// or tokens exist, even where anonymous clients may pull.
//
// What an anonymous client makes of that 401 depends on the scheme:
//
//   - Bearer: docker, podman, crane, oras and regctl fetch an anonymous token
//     and pull. This is the only scheme with which docker can pull without and
//     push with credentials.
//   - Basic: docker without credentials gives up ("no basic auth
//     credentials"). podman sends an empty user and password, which count as
//     anonymous here. crane, oras and regctl go on without credentials.
//
// Therefore the built-in token service is switched on by itself when rules
// grant something to anonymous beside passwords, unless the configuration says
// "builtin: false". Basic credentials are accepted on every request as well.
//
// containerd never asks /v2/. It answers the challenge of the request itself,
// and fetches another token when a challenge of a second request carries
// error="insufficient_scope". So a token that lacks scope is answered by 401
// and that challenge as long as a wider token could help, and by 403 when not
// ([Auth.Refuse]).
//
// # What the package promises
//
// No log line, audit line or error holds a password, a token or a hash.
// Unknown users cost as much time as known ones. A request without credentials
// is authenticated and authorized without locks and without allocation.
//
// Client addresses come from [http.Request.RemoteAddr]; a server behind a
// trusted proxy sets it before it calls this package. TLS and the verification
// of client certificates are left to the server, too.
package auth
