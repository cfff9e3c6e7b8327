// Package install adds servers to the configuration files of hosts, and takes them out. It changes the text of a
// file only where the server is: comments, order, indentation and line ends stay. It knows where the hosts' files
// are, and how they write a server.
package install
