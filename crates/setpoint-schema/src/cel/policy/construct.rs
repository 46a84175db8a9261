//! Constructors of objects: the interpreter knows maps only.

use kube_cel::cel::common::ast::{
    EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue, MapEntryExpr, MapExpr,
};
use kube_cel::cel::common::types::CelString;

use super::Gives;

/// Types that mutating policies may make: the object, any part of it, and operations of JSON patches.
fn is_constructor(name: &str) -> bool {
    name == "JSONPatch" || name == "Object" || name.starts_with("Object.")
}

/// Why a map or list that is written down is not what is wanted: `{"a": 1}` is no `Object{a: 1}`.
pub(super) fn refuse(expression: &IdedExpr, gives: Gives) -> Option<String> {
    let (fits, wanted) = match (gives, &expression.expr) {
        (Gives::Object, Expr::Map(_)) => (false, "Object"),
        (Gives::JsonPatches, Expr::List(list)) => {
            let patch = |item: &IdedExpr| !matches!(&item.expr, Expr::Literal(_) | Expr::Map(_));
            (list.elements.iter().all(patch), "list(JSONPatch)")
        }
        _ => return None,
    };
    (!fits).then(|| format!("must evaluate to {wanted} but got {}", type_of(expression)))
}

/// The type of something that is written down, as cel-go names it.
fn type_of(expression: &IdedExpr) -> String {
    let common = |mut types: Vec<String>| {
        types.sort_unstable();
        types.dedup();
        if let [only] = types.as_slice() { only.clone() } else { "dyn".to_owned() }
    };
    match &expression.expr {
        Expr::Literal(LiteralValue::Boolean(_)) => "bool".to_owned(),
        Expr::Literal(LiteralValue::Double(_)) => "double".to_owned(),
        Expr::Literal(LiteralValue::Int(_)) => "int".to_owned(),
        Expr::Literal(LiteralValue::UInt(_)) => "uint".to_owned(),
        Expr::Literal(LiteralValue::String(_)) => "string".to_owned(),
        Expr::Literal(LiteralValue::Bytes(_)) => "bytes".to_owned(),
        Expr::Literal(LiteralValue::Null) => "null_type".to_owned(),
        Expr::Struct(made) => made.type_name.clone(),
        Expr::List(list) => format!("list({})", common(list.elements.iter().map(type_of).collect())),
        Expr::Map(map) => {
            let parts = |part: fn(&MapEntryExpr) -> &IdedExpr| {
                let types = map.entries.iter().filter_map(|entry| match &entry.expr {
                    EntryExpr::MapEntry(entry) => Some(type_of(part(entry))),
                    EntryExpr::StructField(_) => None,
                });
                common(types.collect())
            };
            format!("map({}, {})", parts(|entry| &entry.key), parts(|entry| &entry.value))
        }
        _ => "dyn".to_owned(),
    }
}

/// Writes `Object{a: 1}` as `{"a": 1}`.
pub(super) fn to_maps(expression: &mut IdedExpr) {
    super::super::parse::children(expression, &mut to_maps);
    let Expr::Struct(made) = &mut expression.expr else { return };
    if !is_constructor(&made.type_name) {
        return;
    }
    let entries = std::mem::take(&mut made.entries);
    let entries = entries.into_iter().map(|entry| IdedEntryExpr { id: entry.id, expr: entry_of(entry.expr) });
    expression.expr = Expr::Map(MapExpr { entries: entries.collect() });
}

fn entry_of(entry: EntryExpr) -> EntryExpr {
    match entry {
        EntryExpr::StructField(field) => {
            let name = LiteralValue::String(CelString::from(field.field));
            let key = IdedExpr { id: 0, expr: Expr::Literal(name) };
            EntryExpr::MapEntry(MapEntryExpr { key, value: field.value, optional: field.optional })
        }
        entry @ EntryExpr::MapEntry(_) => entry,
    }
}
