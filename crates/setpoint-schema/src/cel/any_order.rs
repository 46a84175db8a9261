//! Lists of type `set` and `map` are equal in any order: `==` and `!=` on them become calls of functions that compare so
//! (`k8s.io/apiserver/pkg/cel/common`: `unstructuredSetList.Equal`, `unstructuredMapList.Equal`).

use kube_cel::cel::{
    self,
    common::ast::{CallExpr, EntryExpr, Expr, IdedExpr},
};

use super::estimate::{Known, Scope, loop_scope, scope_of, visit};
use crate::schema::{ListType, Schema};

/// No expression can call it by this name.
pub(super) const EQUAL: &str = "@equal_in_any_order";

/// Rewrites the comparisons of a rule about values of `schema`.
pub(super) fn rewrite(expression: &mut IdedExpr, schema: &Schema) {
    rewrite_in(expression, &scope_of(schema));
}

fn rewrite_in(expression: &mut IdedExpr, scope: &Scope) {
    match &mut expression.expr {
        Expr::Call(call) => {
            if let Some(target) = &mut call.target {
                rewrite_in(target, scope);
            }
            call.args.iter_mut().for_each(|argument| rewrite_in(argument, scope));
            let compares = matches!(call.func_name.as_str(), "_==_" | "_!=_");
            if !compares || !call.args.iter().any(|argument| is_unordered(&visit(argument, scope).1)) {
                return;
            }
            let negated = call.func_name == "_!=_";
            EQUAL.clone_into(&mut call.func_name);
            if negated {
                let equal = IdedExpr { id: expression.id, expr: std::mem::take(&mut expression.expr) };
                let not = CallExpr { func_name: "!_".to_owned(), target: None, args: vec![equal] };
                expression.expr = Expr::Call(not);
            }
        }
        Expr::Select(select) => rewrite_in(&mut select.operand, scope),
        Expr::List(list) => list.elements.iter_mut().for_each(|item| rewrite_in(item, scope)),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                match &mut entry.expr {
                    EntryExpr::MapEntry(entry) => {
                        rewrite_in(&mut entry.key, scope);
                        rewrite_in(&mut entry.value, scope);
                    }
                    EntryExpr::StructField(field) => rewrite_in(&mut field.value, scope),
                }
            }
        }
        Expr::Comprehension(loops) => {
            let inner = loop_scope(loops, scope);
            rewrite_in(&mut loops.iter_range, scope);
            rewrite_in(&mut loops.accu_init, scope);
            rewrite_in(&mut loops.loop_cond, &inner);
            rewrite_in(&mut loops.loop_step, &inner);
            rewrite_in(&mut loops.result, &inner);
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => {}
    }
}

fn is_unordered(known: &Known) -> bool {
    known.schema().is_some_and(|schema| schema.node.list != ListType::Atomic)
}

/// Whether two lists have the same items.
pub(super) fn equal(one: &cel::Value, other: &cel::Value) -> bool {
    let (cel::Value::List(one), cel::Value::List(other)) = (one, other) else { return one == other };
    if one.len() != other.len() {
        return false;
    }
    // Sorted by their looks, equal items stand at the same places.
    let sorted = |list: &[cel::Value]| {
        let mut looks: Vec<String> = list.iter().map(looks).collect();
        looks.sort_unstable();
        looks
    };
    one == other || sorted(one) == sorted(other)
}

/// A value as text, the entries of maps by their keys.
fn looks(value: &cel::Value) -> String {
    match value {
        cel::Value::List(items) => format!("[{}]", items.iter().map(looks).collect::<Vec<_>>().join(",")),
        cel::Value::Map(map) => {
            let mut entries: Vec<String> =
                map.map.iter().map(|(key, value)| format!("{key:?}:{}", looks(value))).collect();
            entries.sort_unstable();
            format!("{{{}}}", entries.join(","))
        }
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{Schema, cel::Rules};

    fn failures(rule: &str, new: &serde_json::Value, old: Option<&serde_json::Value>) -> usize {
        let schema = Schema::from_openapi(&json!({"type": "object", "properties": {"spec": {"type": "object",
            "x-kubernetes-validations": [{"rule": rule}],
            "properties": {
                "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                    "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}}},
                "list": {"type": "array", "items": {"type": "string"}},
            }}}}))
        .unwrap();
        Rules::compile(&schema).unwrap().validate(new, old).len()
    }

    #[test]
    fn sets_and_maps_are_equal_in_any_order_and_lists_are_not() {
        let object = json!({"spec": {"set": ["b", "a"], "list": ["b", "a"],
            "map": [{"k": "x", "v": 1}, {"k": "y", "v": 2}]}});
        assert_eq!(failures("self.set == ['a', 'b']", &object, None), 0);
        assert_eq!(failures("['a', 'b'] != self.set", &object, None), 1);
        assert_eq!(failures("self.set == ['a', 'c']", &object, None), 1);
        assert_eq!(failures("self.list == ['a', 'b']", &object, None), 1);
        assert_eq!(failures("!self.set.isSorted()", &object, None), 0);
        let old =
            json!({"spec": {"map": [{"k": "y", "v": 2}, {"k": "x", "v": 1}], "set": ["a", "b"], "list": []}});
        assert_eq!(failures("self.map == oldSelf.map && self.set == oldSelf.set", &object, Some(&old)), 0);
        assert_eq!(failures("['q'].all(q, self.set == ['a', 'b'])", &object, None), 0);
    }
}
