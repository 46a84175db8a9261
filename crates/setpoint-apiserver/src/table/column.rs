//! A column of a built-in kind.

use serde_json::{Value, json};

/// Name, type and priority; a column of priority 1 is shown only by `-o wide`.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub kind: &'static str,
    pub wide: bool,
}

/// A column of texts.
pub const fn text(name: &'static str) -> Column {
    Column { name, kind: "string", wide: false }
}

/// A column of whole numbers.
pub const fn number(name: &'static str) -> Column {
    Column { name, kind: "integer", wide: false }
}

/// A column of truth values.
pub const fn boolean(name: &'static str) -> Column {
    Column { name, kind: "boolean", wide: false }
}

/// A column of texts for `-o wide`.
pub const fn wide(name: &'static str) -> Column {
    Column { name, kind: "string", wide: true }
}

/// The default columns: a name and a time that kubectl prints as it is.
pub const CREATED_AT: [Column; 2] = [text("Name"), Column { name: "Created At", kind: "date", wide: false }];

impl Column {
    /// The column as a table shows it.
    pub fn definition(&self) -> Value {
        let format = if self.name == "Name" { "name" } else { "" };
        json!({"name": self.name, "type": self.kind, "format": format, "description": "", "priority": i32::from(self.wide)})
    }
}
