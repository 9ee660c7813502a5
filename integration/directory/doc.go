// Package directory tests the registry with users and groups of an LDAP directory. The
// directory speaks the protocol by an implementation that shares no code with the registry's
// way of asking, and has entries that the tests change. It can be stopped, hang and refuse.
package directory
