//! The memory of every reference model has an origin: a module of the model and a line outside of
//! autograd.

use lowtide_allocator::{Action, Category, ModulePath, Origin, Record};
use lowtide_autograd::{Attempt, Pass, SavedPolicy};

use crate::common::{KEY, Outcome, cpu};
use crate::zoo::ZOO;

#[test]
fn every_block_of_a_step_names_a_module_and_no_line_of_autograd() -> Outcome {
    for (name, build) in ZOO {
        for policy in [None, Some(SavedPolicy::Recompute)] {
            let device = cpu();
            let mut case = build(&device, 0.1)?;
            if policy.is_some() && !case.has_blocks() {
                continue;
            }
            case.model().set_policy(policy);
            let mut modules = vec![ModulePath::ROOT];
            case.model().visit(&mut |name, _| modules.push(ModulePath::of_parameter(name)));
            let first_event = device.allocator().event_count();
            let attempt = Attempt::new();
            let pass = Pass::train(KEY, &attempt);
            let scope = device.category(Category::Activation);
            // As in a trainer, memory that no submodule allocates counts for the model itself.
            let model = Origin { module: Some(ModulePath::ROOT), site: None }.enter();
            let loss = case.loss(&pass)?;
            drop((scope, model));
            pass.backward(loss)?;

            let history = device.allocator().history();
            let made = |record: &&Record| {
                record.sequence >= first_event && record.action == Action::Allocate
            };
            let made: Vec<&Record> = history.records().iter().filter(made).collect();
            for record in &made {
                assert!(!record.site.file().contains("autograd/src"), "{name}: {record:?}");
                assert!(record.module.is_some(), "{name}: {record:?}");
            }
            // Every module with parameters has gradients.
            for module in &modules[1..] {
                let mut gradients = made.iter().filter(|record| record.module == Some(*module));
                // The model itself adds the embedding of positions of this module.
                let is_added = (name, module.path()) == ("vit_b_16", "encoder");
                assert!(
                    gradients.any(|record| record.category == Category::Gradient) || is_added,
                    "{name}: no gradient in {module}"
                );
            }
        }
    }
    Ok(())
}
