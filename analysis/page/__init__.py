"""The page of a profile: the claim, the verdict and every artefact
in one self-contained HTML file.
"""
