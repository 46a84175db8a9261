//! Process nodes: pods as Linux processes in namespaces of their own
