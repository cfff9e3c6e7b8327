// Package redistest runs real Redis servers for tests: alone, as a replica, under
// a Sentinel or as a Cluster; and kills, stops and cuts them off.
package redistest
