// Package auth answers two questions about a request to the registry: who makes it, and
// what may that client do.
//
// # Terms
//
// A method proves who makes a request. The methods are htpasswd and LDAP (Basic), OIDC
// (Bearer, or as a Basic password), a verified client certificate, a token of the built-in token
// service or of an external one, and the API token of a robot (Basic or Bearer). Any number of methods work at once. The result is an
// [Identity]. A [Rule] grants actions on repositories to subjects. Rules add up, and no
// rule takes anything away. A challenge is the WWW-Authenticate value that tells a client
// how to authenticate.
//
// # Subjects
//
//	anonymous      everybody, with or without credentials
//	*              everybody who is authenticated, by any method
//	alice          an htpasswd user, or a client certificate of that name
//	ldap:alice     the user alice of the LDAP directory
//	oidc:corp:bob  the user bob of the OIDC issuer named corp
//	group:corp:dev members of dev by the groups claim of the issuer named corp
//	group:ldap:dev members of dev by the LDAP directory
//	group:mtls:dev members of dev by the OU of their certificate
//	group:dev      members of dev, if there is only one source of groups
//
// Robots are not subjects. A robot may do what its API token permits, and what everybody
// may do. The token is looked up for every request, so that it can be revoked at once.
//
// A source of groups is an OIDC issuer, the LDAP directory, or the client certificates.
//
// If there are methods and no rules, every authenticated client may do everything and
// anonymous clients may do nothing, as with Distribution. If there are neither methods
// nor rules, everything is allowed ([Auth.Open]), and the caller should listen on
// loopback only.
//
// A token of the built-in service permits what both its access claim and the rules
// permit. So narrower rules take effect at once after a restart. A token of an external
// service permits exactly its access claim. In both cases, what is granted to anonymous
// needs no token, and a client that sends a token does not lose it.
//
// # What clients need of /v2/
//
// docker requests /v2/ once, without credentials. It uses the challenge of that answer
// for everything that follows, and does not request /v2/ again after a later 401. podman,
// skopeo and buildah do the same. So if /v2/ were open, "docker login" would succeed
// without a check of the password, and every push would fail. Therefore
// [Auth.PingAllowed] makes /v2/ answer 401 to a plain anonymous request as soon as
// passwords or tokens exist, even if anonymous clients may pull.
//
// What an anonymous client does after that 401 depends on the scheme:
//
//   - Bearer: docker, podman, crane, oras and regctl fetch an anonymous token
//     and pull. Only with this scheme can docker both pull without credentials
//     and push with them.
//   - Basic: docker without credentials gives up ("no basic auth credentials"). podman
//     sends an empty user and password, which count as anonymous here. crane, oras and
//     regctl continue without credentials.
//
// Therefore the built-in token service is switched on automatically if there are
// passwords and the rules grant something to anonymous, unless the configuration says
// "builtin: false". Basic credentials are accepted on every request as well.
//
// containerd never requests /v2/. It answers the challenge of the request itself. It
// fetches another token if the challenge of a second request has
// error="insufficient_scope". So a request whose token lacks scope is answered with 401
// and that challenge if a wider token could help, and with 403 otherwise ([Auth.Refuse]).
//
// # What the package promises
//
// No log line, audit line or error contains a password, a token or a hash. Checking the
// password of an unknown user takes as long as for a known one. A request without
// credentials is authenticated and authorized without locks and without allocation.
//
// Client addresses come from [http.Request.RemoteAddr]. A server behind a trusted proxy
// sets RemoteAddr before it calls this package. TLS and the verification of client
// certificates are left to the server, too.
package auth
