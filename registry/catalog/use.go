package catalog

// LastPull is an SQL expression for the time when a manifest m was last pulled, by a tag
// or by digest. For an index it includes the manifests that the index names, and the
// manifests that a named index names. Many clients ask for a tag with HEAD and pull by
// digest.
const LastPull = `(SELECT MAX(u.at) FROM (SELECT m.pulled_at AS at
	UNION ALL SELECT t.pulled_at FROM tags t WHERE t.manifest_id = m.id
	UNION ALL SELECT c.pulled_at FROM refs f JOIN manifests c ON c.repo_id = f.repo_id AND c.blob_id = f.blob_id WHERE f.manifest_id = m.id
	UNION ALL SELECT d.pulled_at FROM refs f JOIN manifests c ON c.repo_id = f.repo_id AND c.blob_id = f.blob_id
		JOIN refs g ON g.manifest_id = c.id JOIN manifests d ON d.repo_id = g.repo_id AND d.blob_id = g.blob_id WHERE f.manifest_id = m.id) u)`

// LastUse is an SQL expression for LastPull, or for the time when the manifest arrived if
// that is later.
const LastUse = `(SELECT CASE WHEN p.at > m.created_at THEN p.at ELSE m.created_at END FROM (SELECT ` + LastPull + ` AS at) p)`
