"""Adapters: the merged weight lies on the line, the result is a plain adapter, what does not go
together is named.
"""

import pytest
import tiny
import torch
from weight_pairs import adapted, batches, by_hand, merged

from compatkit.weights.interpolation import interpolate


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"target_modules": ["query", "word_embeddings"]},
        {"rank_pattern": {"value": 1}},
        {"bias": "lora_only"},
    ],
)
def test_merged_adapters_lie_on_the_line_and_load_with_plain_peft(tmp_path, options):
    from peft import PeftModel

    old, new = adapted(5, rank=2, **options), adapted(6, rank=4, alpha=7)
    if options:
        new = adapted(6, rank=4, alpha=7, **options)
    if options.get("bias"):
        for model in (old, new):
            torch.nn.init.normal_(
                model.get_submodule(
                    "base_model.model.bert.encoder.layer.0.attention.self.query.base_layer"
                ).bias
            )
    kept = [tiny.weights(one) for one in (old, new)]
    mixed = interpolate(old, new, 0.3)
    expected = by_hand(merged(old), merged(new), 0.3)
    assert (
        tiny.distance(merged(mixed), {name: value.float() for name, value in expected.items()})
        < 1e-5
    )
    assert tiny.same(old, kept[0]) and tiny.same(new, kept[1])
    assert (
        mixed.base_model.model.bert.encoder.layer[0]
        .attention.self.query.lora_A["default"]
        .out_features
        == 6
    )
    mixed.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(tiny.model(1, dropout=0.0), tmp_path).eval()
    with torch.no_grad():
        assert torch.allclose(again(**batches()[0]).logits, mixed(**batches()[0]).logits, atol=1e-5)


def test_the_ends_of_adapters_are_the_adapters():
    old, new = adapted(5, rank=2), adapted(6, rank=4).train()
    ends = interpolate(old, new, 1), interpolate(old, new, 0)
    assert (
        tiny.same(ends[0], old)
        and tiny.same(ends[1], new)
        and ends[0].training
        and ends[0] is not old
    )


def test_adapters_that_do_not_go_together():
    with pytest.raises(ValueError, match="one of the two models"):
        interpolate(tiny.model(1), adapted(5), 0.5)
    with pytest.raises(ValueError, match="base models.*merge"):
        interpolate(adapted(5), adapted(6, base=2), 0.5)
    with pytest.raises(ValueError, match="change different layers, such as"):
        interpolate(adapted(5), adapted(6, target_modules=["query", "key"]), 0.5)
    with pytest.raises(ValueError, match="more than two low-rank factors"):
        interpolate(adapted(5, use_dora=True), adapted(6, use_dora=True), 0.5)
    melted = adapted(6)
    melted.merge_adapter()
    with pytest.raises(ValueError, match="merged into .*unmerge it first"):
        interpolate(adapted(5), melted, 0.5)
    several = adapted(6)
    several.add_adapter("second", next(iter(several.peft_config.values())))
    with pytest.raises(ValueError, match="one LoRA adapter is needed"):
        interpolate(adapted(5), several, 0.5)
