//! Columns of the tables that `kubectl get` prints.

use serde_json::Value;

use crate::{definition::find, facts::column_lines};

/// The columns of a resource's tables as `columnDefinitions` has them: name, type, format, description and priority. `scales` of `autoscaling/v1` is
/// the subresource of others. `None` for resources that cannot be listed.
pub fn columns(group: &str, version: &str, plural: &str) -> Option<Vec<Value>> {
    let dot = if group.is_empty() { "" } else { "." };
    let (_, text) = find(column_lines(), &format!("{plural}{dot}{group}/{version}"))?;
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    #[test]
    fn every_resource_that_can_be_listed_has_columns() {
        assert!(column_lines().lines().is_sorted());
        for kind in kinds() {
            let columns = columns(kind.group, kind.version, kind.plural);
            assert_eq!(columns.is_some(), kind.verbs.contains(&"list"), "{}", kind.plural);
            let Some(columns) = columns else { continue };
            assert!(columns.len() > 1 && columns.iter().all(|column| column["name"].is_string()));
        }
        let scale = columns("autoscaling", "v1", "scales").expect("a scale");
        assert_eq!(scale[1]["name"], "Desired");
    }
}
